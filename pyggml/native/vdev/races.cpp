// Races, by vector clocks over the host and the queues (Lamport 1978; Mattern 1989).
//
// The calls alone decide what happens before what: operations of a queue follow each other and what the host did before
// it put them in; a copy comes before what its destination is told next; an event before what waits for it. When the
// work really runs does not matter, so a race is found under any schedule. All threads of the host count as one,
// in the order of their calls: how they wait for each other is not seen here.
#include "vdev.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace vdev {
namespace races {

std::atomic<bool> on{ false };

namespace {

constexpr size_t host     = 0;
constexpr size_t most     = 1000;     // races that are kept
constexpr size_t most_runs = 1u << 16; // of a strided tensor; beyond, all between its first and last byte counts

struct Operation {
    const char *   what;
    size_t         actor;
    const Device * device; // of the memory, or the graph's; NULL: the CPU
    uint32_t       graph;  // how many its device had computed before
    std::string    tensor; // the source's name if it has none
    std::string    source; // of a copy
};

struct Stamp {
    uint64_t time  = 0; // of its actor; 0: nobody
    size_t   actor = 0;
    size_t   operation = 0;
};

struct Segment {
    uintptr_t          end;
    Stamp              write;
    std::vector<Stamp> reads; // one of each actor
};

struct State {
    std::mutex                                        mutex;
    Clock                                             clock = { 0 }; // the host's
    std::vector<const Device *>                       actors = { nullptr };
    std::vector<std::pair<size_t, uint64_t>>          latest; // of queues that the host has not waited for
    std::vector<Operation>                            operations;
    std::map<uintptr_t, Segment>                      memory; // by the address of their first byte
    std::set<std::string>                             known;
    std::vector<std::string>                          races;
    bool                                              to_stderr = false;
};

State & state() {
    static State * it = new State;
    return *it;
}

using Lock = std::lock_guard<std::mutex>;

void join(Clock & clock, const Clock & other) {
    if (clock.size() < other.size()) {
        clock.resize(other.size());
    }
    for (size_t i = 0; i < other.size(); i++) {
        clock[i] = std::max(clock[i], other[i]);
    }
}

uint64_t at(const Clock & clock, size_t actor) {
    return actor < clock.size() ? clock[actor] : 0;
}

uint64_t tick(Clock & clock, size_t actor) {
    if (clock.size() <= actor) {
        clock.resize(actor + 1);
    }
    return ++clock[actor];
}

// Once the host has waited for all queues, whatever comes next comes after all that was.
void forget_if_idle(State & s) {
    s.latest.erase(std::remove_if(s.latest.begin(), s.latest.end(),
                                  [&](const auto & one) { return at(s.clock, one.first) >= one.second; }),
                   s.latest.end());
    if (s.latest.empty()) {
        s.memory.clear();
        s.operations.clear();
    }
}

void note_latest(State & s, size_t actor, uint64_t time) {
    for (auto & one : s.latest) {
        if (one.first == actor) {
            one.second = time;
            return;
        }
    }
    s.latest.push_back({ actor, time });
}

std::string name_of_queue(const State & s, size_t actor) {
    return actor == host ? "the host" : "the queue of " + s.actors[actor]->name;
}

std::string name_of_device(const Operation & o) {
    return o.device == nullptr ? "CPU" : o.device->name;
}

std::string describe(const State & s, const Operation & o, bool writes) {
    std::string text = o.what;
    if (!o.source.empty()) {
        text += " of '" + o.source + "'";
    }
    text += o.source.empty() ? " " : " to ";
    text += o.tensor.empty() ? "memory of " + name_of_device(o) : "'" + o.tensor + "'";
    text += o.actor == host ? " by the host" : " in " + name_of_queue(s, o.actor);
    return text + (writes ? " (writes)" : " (reads)");
}

void append(std::string & line, const char * name, const std::string & value) {
    line += ",\"";
    line += name;
    line += "\":";
    ledger::quote(line, value.c_str());
}

std::string to_json(const State & s, const Operation & o, bool writes) {
    std::string line = "{\"operation\":";
    ledger::quote(line, o.what);
    append(line, "tensor", o.tensor);
    append(line, "source", o.source);
    append(line, "queue", o.actor == host ? "" : s.actors[o.actor]->name);
    append(line, "device", name_of_device(o));
    line += ",\"graph\":" + std::to_string(o.graph);
    return line + (writes ? ",\"writes\":true}" : ",\"writes\":false}");
}

void report(State & s, const Stamp & earlier, bool earlier_writes, const Stamp & later, bool later_writes,
            uint64_t bytes) {
    const Operation & a     = s.operations[earlier.operation];
    const Operation & b     = s.operations[later.operation];
    const std::string first = describe(s, a, earlier_writes), second = describe(s, b, later_writes);
    if (s.races.size() >= most || !s.known.insert(first + "\n" + second).second) {
        return;
    }
    const std::string missing = later.actor == host ?
                                    "the host does not wait for " + name_of_queue(s, earlier.actor) :
                                    name_of_queue(s, later.actor) + " does not wait for " +
                                        name_of_queue(s, earlier.actor);
    const std::string text = second + " is not ordered after " + first + ", " + std::to_string(bytes) +
                             " bytes: " + missing;
    std::string line = "{\"first\":" + to_json(s, a, earlier_writes) +
                       ",\"second\":" + to_json(s, b, later_writes) + ",\"bytes\":" + std::to_string(bytes);
    append(line, "missing", missing);
    append(line, "text", text);
    s.races.push_back(line + "}");
    if (s.to_stderr) {
        fprintf(stderr, "pyggml race: %s\n", text.c_str());
    }
}

// Cuts the segment around an address in two, so that one begins there.
void cut(State & s, uintptr_t address) {
    auto it = s.memory.upper_bound(address);
    if (it == s.memory.begin()) {
        return;
    }
    --it;
    if (it->first < address && address < it->second.end) {
        Segment rest   = it->second;
        it->second.end = address;
        s.memory.emplace_hint(std::next(it), address, std::move(rest));
    }
}

void touch(State & s, uintptr_t begin, uintptr_t end, const Clock & clock, const Stamp & stamp, bool writes) {
    cut(s, begin);
    cut(s, end);
    auto      it = s.memory.lower_bound(begin);
    uintptr_t to = begin;
    while (it != s.memory.end() && it->first < end) {
        Segment & segment = it->second;
        if (segment.write.time > at(clock, segment.write.actor)) {
            report(s, segment.write, true, stamp, writes, segment.end - it->first);
        }
        if (writes) {
            for (const Stamp & read : segment.reads) {
                if (read.time > at(clock, read.actor)) {
                    report(s, read, false, stamp, true, segment.end - it->first);
                }
            }
            it = s.memory.erase(it);
            continue;
        }
        if (to < it->first) {
            s.memory.emplace_hint(it, to, Segment{ it->first, {}, { stamp } });
        }
        to               = segment.end;
        const auto known = std::find_if(segment.reads.begin(), segment.reads.end(),
                                        [&](const Stamp & read) { return read.actor == stamp.actor; });
        if (known != segment.reads.end()) {
            *known = stamp;
        } else {
            segment.reads.push_back(stamp);
        }
        ++it;
    }
    if (writes) {
        s.memory.emplace_hint(it, begin, Segment{ end, stamp, {} });
    } else if (to < end) {
        s.memory.emplace_hint(it, to, Segment{ end, {}, { stamp } });
    }
}

void touch_rows(State & s, const Access & access, const Clock & clock, const Stamp & stamp) {
    const uintptr_t data = reinterpret_cast<uintptr_t>(access.data);
    if (access.size == 0 || access.rows == 0) {
        return;
    }
    if (access.rows == 1 || access.stride == access.size) {
        touch(s, data, data + access.rows * access.size, clock, stamp, access.writes);
        return;
    }
    for (size_t row = 0; row < access.rows; row++) {
        touch(s, data + row * access.stride, data + row * access.stride + access.size, clock, stamp, access.writes);
    }
}

// The bytes of a tensor, in as few runs as there are.
void touch_tensor(State & s, const ggml_tensor * tensor, const Clock & clock, const Stamp & stamp, bool writes) {
    const uintptr_t data = reinterpret_cast<uintptr_t>(tensor->data);
    if (data == 0 || ggml_is_empty(tensor)) {
        return;
    }
    struct Dimension {
        size_t count, stride;
    };
    std::vector<Dimension> dimensions;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        const size_t count = i == 0 ? tensor->ne[0] / ggml_blck_size(tensor->type) : tensor->ne[i];
        if (count > 1) {
            dimensions.push_back({ count, tensor->nb[i] });
        }
    }
    std::sort(dimensions.begin(), dimensions.end(),
              [](const Dimension & a, const Dimension & b) { return a.stride < b.stride; });
    size_t run = ggml_type_size(tensor->type), first = 0, runs = 1;
    while (first < dimensions.size() && dimensions[first].stride == run) {
        run *= dimensions[first++].count;
    }
    for (size_t i = first; i < dimensions.size(); i++) {
        runs *= dimensions[i].count;
    }
    if (runs > most_runs) {
        touch(s, data, data + ggml_nbytes(tensor), clock, stamp, writes);
        return;
    }
    for (size_t number = 0; number < runs; number++) {
        uintptr_t from = data;
        size_t    rest = number;
        for (size_t i = first; i < dimensions.size(); i++) {
            from += rest % dimensions[i].count * dimensions[i].stride;
            rest /= dimensions[i].count;
        }
        touch(s, from, from + run, clock, stamp, writes);
    }
}

std::string name_of(const ggml_tensor * tensor) {
    for (; tensor != nullptr; tensor = tensor->src[0]) {
        if (tensor->name[0] != '\0') {
            return tensor->name;
        }
    }
    return "";
}

// All that a graph reads and writes; it is `actor`'s work at `time`.
void touch_graph(State & s, const ggml_cgraph & graph, size_t actor, const Device * device, const Clock & clock,
                 uint64_t time) {
    const uint32_t number = device == nullptr ? 0 : device->graphs.load();
    for (int i = 0; i < graph.n_nodes; i++) {
        const ggml_tensor * node = graph.nodes[i];
        if (touches_no_memory(node)) {
            continue;
        }
        s.operations.push_back({ ggml_op_name(node->op), actor, device, number, name_of(node), "" });
        const Stamp stamp{ time, actor, s.operations.size() - 1 };
        for (const ggml_tensor * src : node->src) {
            if (src != nullptr) {
                touch_tensor(s, src, clock, stamp, false);
            }
        }
        touch_tensor(s, node, clock, stamp, true);
    }
}

// The clock of the host's next operation, or of the queue's, and that operation's time.
uint64_t begin(State & s, Queue * queue) {
    if (queue == nullptr) {
        return tick(s.clock, host);
    }
    join(queue->clock, s.clock);
    const uint64_t time = tick(queue->clock, queue->actor);
    note_latest(s, queue->actor, time);
    return time;
}

} // namespace

size_t new_actor(const Device & device) {
    State &    s = state();
    const Lock lock(s.mutex);
    s.actors.push_back(&device);
    return s.actors.size() - 1;
}

void add_transfer(const Transfer & transfer, std::initializer_list<Access> accesses) {
    State &    s = state();
    const Lock lock(s.mutex);
    if (transfer.queue == nullptr && s.latest.empty()) {
        return; // nothing is under way, so all that follows comes after it
    }
    const size_t   actor = transfer.queue == nullptr ? host : transfer.queue->actor;
    const uint64_t time  = begin(s, transfer.queue);
    const Clock &  clock = transfer.queue == nullptr ? s.clock : transfer.queue->clock;
    s.operations.push_back({ ledger::kind_names[transfer.kind], actor, transfer.device, transfer.device->graphs.load(),
                             name_of(transfer.tensor), name_of(transfer.source) });
    const Stamp stamp{ time, actor, s.operations.size() - 1 };
    for (const Access & access : accesses) {
        touch_rows(s, access, clock, stamp);
    }
}

void add_graph(Queue & queue, const ggml_cgraph & graph) {
    State &    s = state();
    const Lock lock(s.mutex);
    if (graph.n_nodes == 0) {
        return;
    }
    const uint64_t time = begin(s, &queue);
    touch_graph(s, graph, queue.actor, queue.device, queue.clock, time);
}

void add_host_graph(const ggml_cgraph & graph) {
    State &    s = state();
    const Lock lock(s.mutex);
    if (s.latest.empty()) {
        return; // nothing is under way, so all that follows comes after it
    }
    const uint64_t time = begin(s, nullptr);
    touch_graph(s, graph, host, nullptr, s.clock, time);
}

void add_free(const Device & device, const void * data, size_t size) {
    add_transfer({ nullptr, PYGGML_VDEV_FREE, &device, nullptr }, { { data, size, true } });
    State &         s = state();
    const Lock      lock(s.mutex);
    const uintptr_t begin_ = reinterpret_cast<uintptr_t>(data);
    cut(s, begin_);
    cut(s, begin_ + size);
    s.memory.erase(s.memory.lower_bound(begin_), s.memory.lower_bound(begin_ + size));
}

Clock clock_of(const Queue & queue) {
    const Lock lock(state().mutex);
    return queue.clock;
}

void queue_waits(Queue & queue, const Clock & clock) {
    const Lock lock(state().mutex);
    join(queue.clock, clock);
}

void host_waits(const Clock & clock) {
    State &    s = state();
    const Lock lock(s.mutex);
    join(s.clock, clock);
    forget_if_idle(s);
}

void open_from_environment() {
    const char * text = std::getenv("PYGGML_VDEV_RACES");
    if (text != nullptr && *text != '\0' && strcmp(text, "0") != 0) {
        state().to_stderr = true;
        on                = true;
    }
}

} // namespace races
} // namespace vdev

using vdev::races::state;

void pyggml_vdev_races_enable(int on) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.races.clear();
    s.known.clear();
    s.memory.clear();
    s.operations.clear();
    s.latest.clear();
    vdev::races::on = on != 0;
    if (on != 0) {
        vdev::host::watch();
    }
}

uint64_t pyggml_vdev_races_count(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return s.races.size();
}

const char * pyggml_vdev_races_read(uint64_t number) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    return number < s.races.size() ? vdev::keep_error(s.races[number]) : nullptr;
}
