// The timeline: every operation in the order of the host's calls, with the queue that it is in, what it moves and computes,
// and who waits for what. It holds no times: whoever reads it works those out (pyggml/clock).
#include "vdev.hpp"

#include <algorithm>
#include <cstring>

namespace vdev {
namespace timeline {

std::atomic<bool> on{ false };

namespace {

constexpr size_t most = 1u << 21; // lines that are kept in memory

struct State {
    std::mutex               mutex;
    std::vector<std::string> lines;
    bool                     in_memory = false;
    int                      file      = -1;
    const Generation *       header    = nullptr; // whose names the lines have
    uint64_t                 operations = 0;
    uint64_t                 dropped    = 0;
};

State & state() {
    static State * it = new State;
    return *it;
}

using Lock = std::lock_guard<std::mutex>;

void field(std::string & line, const char * name, uint64_t value) {
    line += ",\"";
    line += name;
    line += "\":" + std::to_string(value);
}

void field(std::string & line, const char * name, const char * value) {
    line += ",\"";
    line += name;
    line += "\":";
    ledger::quote(line, value);
}

void emit(State & s, std::string line) {
    ledger::write_all("timeline", s.file, line + "\n", s.operations);
    if (s.in_memory) {
        if (s.lines.size() < most) {
            s.lines.push_back(std::move(line));
        } else {
            s.dropped++;
        }
    }
}

// The beginning of an operation's line; its number becomes the queue's last.
std::string begin(State & s, Queue * queue, pyggml_vdev_kind kind, const Device & device, const char * tensor) {
    if (s.header != device.generation) {
        s.header         = device.generation;
        std::string line = "{\"pyggml_vdev_timeline\":1,\"devices\":[";
        for (const auto & one : s.header->devices) {
            line += line.back() == '[' ? "" : ",";
            ledger::quote(line, one->name.c_str());
        }
        emit(s, line + "]}");
    }
    const uint64_t number = ++s.operations;
    std::string    line   = "{\"operation\":" + std::to_string(number);
    field(line, "queue", queue != nullptr ? queue->actor : 0);
    field(line, "kind", ledger::kind_names[kind]);
    field(line, "device", (uint64_t) device.index);
    field(line, "tensor", tensor);
    if (queue != nullptr) {
        field(line, "on", (uint64_t) queue->device->index);
        queue->last = number;
    }
    return line;
}

uint64_t elements(const ggml_tensor * tensor) {
    return (uint64_t) ggml_nelements(tensor);
}

bool is_weight(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    return buffer != nullptr && ggml_backend_buffer_get_usage(buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// Multiplications and additions of a product, or an operation for every element of the result.
uint64_t flops_of(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID: return 2 * elements(node) * (uint64_t) node->src[0]->ne[0];
        case GGML_OP_OUT_PROD: return 2 * elements(node) * (uint64_t) node->src[0]->ne[1];
        case GGML_OP_FLASH_ATTN_EXT: {
            // of each query with each key, and of the weights with each value
            const ggml_tensor * q = node->src[0];
            return 2 * (uint64_t) (q->ne[1] * q->ne[2] * q->ne[3]) * (uint64_t) node->src[1]->ne[1] *
                   (uint64_t) (q->ne[0] + node->src[2]->ne[0]);
        }
        default: return elements(node);
    }
}

// Bytes that an operation must read and write at least.
uint64_t bytes_of(const ggml_tensor * node) {
    uint64_t bytes = ggml_nbytes(node);
    if (node->op == GGML_OP_SET_ROWS) { // the result is the whole tensor, of which some rows are written
        bytes = ggml_row_size(node->type, node->src[0]->ne[0]) * (uint64_t) ggml_nrows(node->src[0]);
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        const ggml_tensor * src = node->src[i];
        if (src == nullptr || (node->op == GGML_OP_SET_ROWS && i == 2)) {
            continue;
        }
        uint64_t size = ggml_nbytes(src);
        if (node->op == GGML_OP_GET_ROWS && i == 0) { // only the rows that are asked for
            size = std::min<uint64_t>(size, ggml_row_size(src->type, src->ne[0]) * (uint64_t) ggml_nrows(node));
        }
        if (node->op == GGML_OP_MUL_MAT_ID && i == 0 && src->ne[2] > 0) { // at most one matrix for every choice
            size = size / (uint64_t) src->ne[2] * std::min<uint64_t>((uint64_t) src->ne[2], elements(node->src[2]));
        }
        bytes += size;
    }
    return bytes;
}

} // namespace

void add_transfer(Queue * queue, pyggml_vdev_kind kind, const Device & device, const Device * peer,
                  const ggml_tensor * tensor, uint64_t bytes, uint64_t rows) {
    State &     s = state();
    const Lock  lock(s.mutex);
    std::string line = begin(s, queue, kind, device, tensor != nullptr ? tensor->name : "");
    if (peer != nullptr) {
        field(line, "peer", (uint64_t) peer->index);
    }
    field(line, "bytes", bytes);
    field(line, "rows", rows);
    if (tensor != nullptr && is_weight(tensor)) {
        line += ",\"weight\":true";
    }
    emit(s, line + "}");
}

void add_graph(Queue & queue, const ggml_cgraph & graph) {
    State &     s = state();
    const Lock  lock(s.mutex);
    std::string line = begin(s, &queue, PYGGML_VDEV_COMPUTE, *queue.device,
                             graph.n_nodes > 0 ? graph.nodes[graph.n_nodes - 1]->name : "");
    int64_t     tokens = 0; // columns that weights are multiplied with
    std::string nodes;
    for (int i = 0; i < graph.n_nodes; i++) {
        const ggml_tensor * node = graph.nodes[i];
        if (touches_no_memory(node)) {
            continue;
        }
        if (node->op == GGML_OP_MUL_MAT && is_weight(node->src[0])) {
            tokens = std::max(tokens, ggml_nrows(node->src[1]));
        }
        nodes += nodes.empty() ? "[\"" : ",[\"";
        nodes += ggml_op_desc(node);
        nodes += "\",";
        ledger::quote(nodes, node->name);
        nodes += "," + std::to_string(flops_of(node)) + "," + std::to_string(bytes_of(node)) + "]";
    }
    field(line, "tokens", (uint64_t) tokens);
    emit(s, line + ",\"nodes\":[" + nodes + "]}");
}

void add_wait(const Queue * queue, uint64_t operation) {
    if (operation == 0) {
        return;
    }
    State &    s = state();
    const Lock lock(s.mutex);
    emit(s, "{\"wait\":" + std::to_string(queue != nullptr ? queue->actor : 0) + ",\"for\":" + std::to_string(operation) + "}");
}

bool open_from_environment(std::string & error) {
    State &    s = state();
    const Lock lock(s.mutex);
    if (s.file < 0 && !ledger::open_file("PYGGML_VDEV_TIMELINE", s.file, error)) {
        return false;
    }
    on = s.in_memory || s.file >= 0;
    return true;
}

} // namespace timeline
} // namespace vdev

using vdev::timeline::state;

void pyggml_vdev_timeline_enable(int on) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.lines.clear();
    s.header           = nullptr;
    s.dropped          = 0;
    s.in_memory        = on != 0;
    vdev::timeline::on = s.in_memory || s.file >= 0;
}

uint64_t pyggml_vdev_timeline_count(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return s.lines.size();
}

uint64_t pyggml_vdev_timeline_dropped(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return s.dropped;
}

const char * pyggml_vdev_timeline_read(uint64_t number) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return number < s.lines.size() ? vdev::keep_error(s.lines[number]) : nullptr;
}
