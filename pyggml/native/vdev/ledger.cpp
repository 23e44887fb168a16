// The ledger: records in memory for whoever reads them, lines in a file or a summary for any program.
#include "vdev.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace vdev {
namespace ledger {

std::atomic<bool> on{ false };

void quote(std::string & out, const char * text) {
    out += '"';
    for (; *text; text++) {
        const unsigned char c = (unsigned char) *text;
        if (c == '"' || c == '\\') {
            out += '\\';
            out += (char) c;
        } else if (c < 0x20 || c == 0x7f) {
            char escape[8];
            snprintf(escape, sizeof(escape), "\\u%04x", c);
            out += escape;
        } else {
            out += (char) c;
        }
    }
    out += '"';
}

const char * const kind_names[10] = { "alloc",  "free", "set",    "get",   "set_2d",
                                      "get_2d", "cpy",  "memset", "clear", "compute" };

void write_all(const char * what, int & file, const std::string & lines, uint64_t number) {
    const char * text = lines.data();
    size_t       size = lines.size();
    while (size > 0 && file >= 0) {
        const ssize_t done = write(file, text, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            fprintf(stderr, "pyggml: cannot write the %s: %s; it ends at record %" PRIu64 "\n", what, strerror(errno),
                    number);
            file = -1;
            return;
        }
        text += done;
        size -= (size_t) done;
    }
}

bool open_file(const char * variable, int & file, std::string & error) {
    const char * name = std::getenv(variable);
    if (name == nullptr || *name == '\0') {
        return true;
    }
    std::string path = name;
    const auto  pid  = path.find("%p");
    if (pid != std::string::npos) {
        path.replace(pid, 2, std::to_string(getpid()));
    }
    file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) {
        error = std::string(variable) + ": cannot write " + path + ": " + strerror(errno);
    }
    return file >= 0;
}

namespace {

constexpr uint64_t capacity = 1u << 22; // records, 480 MiB

struct Sum {
    uint64_t count = 0;
    uint64_t rows  = 0;
    uint64_t bytes = 0;
};

struct State {
    std::mutex                                      mutex;
    std::vector<pyggml_vdev_record>                 records;
    bool                                            in_memory = false;
    uint64_t                                        sequence  = 0;
    uint64_t                                        dropped   = 0;
    int                                             file      = -1;
    const Generation *                              header    = nullptr; // whose names the file has
    bool                                            summary   = false;
    std::map<std::pair<std::string, int32_t>, Sum> sums;
};

// Never destroyed: buffers are freed, and recorded, during the exit of the process.
State & state() {
    static State * it = new State;
    return *it;
}

void field(std::string & out, const char * name, uint64_t value) {
    out += ",\"";
    out += name;
    out += "\":";
    out += std::to_string(value);
}

// One write for each line, so that what happened before an abort or a kill is in the file.
void write_line(State & s, const pyggml_vdev_record & r, const Event & event) {
    std::string line;
    if (s.header != event.device->generation) {
        s.header = event.device->generation;
        line += "{\"pyggml_vdev_ledger\":1,\"devices\":[";
        for (size_t i = 0; i < s.header->devices.size(); i++) {
            line += i == 0 ? "" : ",";
            quote(line, s.header->devices[i]->name.c_str());
        }
        line += "]}\n";
    }
    line += "{\"kind\":\"";
    line += kind_names[r.kind];
    line += "\",\"tensor\":";
    quote(line, r.tensor);
    line += ",\"device\":";
    quote(line, event.device->name.c_str());
    if (event.peer != nullptr) {
        line += ",\"peer\":";
        quote(line, event.peer->name.c_str());
    }
    field(line, "sequence", r.sequence);
    field(line, "bytes", r.bytes);
    field(line, "rows", r.rows);
    field(line, "offset", r.offset);
    field(line, "stride", r.stride);
    field(line, "split", r.split);
    field(line, "flags", r.flags);
    line += "}\n";
    write_all("ledger", s.file, line, s.sequence);
}

void print_summary() {
    State &                           s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    fprintf(stderr, "pyggml ledger: %" PRIu64 " records\n", s.sequence);
    fprintf(stderr, "  %-16s %-8s %10s %14s %18s\n", "device", "kind", "count", "rows", "bytes");
    for (const auto & entry : s.sums) {
        fprintf(stderr, "  %-16s %-8s %10" PRIu64 " %14" PRIu64 " %18" PRIu64 "\n", entry.first.first.c_str(),
                kind_names[entry.first.second], entry.second.count, entry.second.rows, entry.second.bytes);
    }
}

} // namespace

void append(const Event & event) {
    State &                           s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    pyggml_vdev_record                r{};
    r.sequence = s.sequence++;
    r.bytes    = event.bytes;
    r.rows     = event.rows;
    r.offset   = event.offset;
    r.stride   = event.stride;
    r.kind     = event.kind;
    r.device   = event.device->index;
    r.peer     = event.peer != nullptr ? event.peer->index : -1;
    r.split    = event.device->graphs.load(std::memory_order_relaxed);
    r.flags    = event.flags;
    strncpy(r.tensor, event.tensor, sizeof(r.tensor) - 1);
    if (s.in_memory) {
        if (s.records.size() < capacity) {
            s.records.push_back(r);
        } else {
            s.dropped++;
        }
    }
    if (s.file >= 0) {
        write_line(s, r, event);
    }
    if (s.summary && (event.flags & PYGGML_VDEV_REFUSED) == 0) {
        Sum & sum = s.sums[{ event.device->name, event.kind }];
        sum.count++;
        sum.rows += r.rows;
        sum.bytes += r.bytes;
    }
}

bool open_from_environment(std::string & error) {
    const char * name = std::getenv("PYGGML_VDEV_LEDGER");
    if (name == nullptr || *name == '\0') {
        return true;
    }
    State &                           s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    if (s.file >= 0 || s.summary) {
        return true;
    }
    if (strcmp(name, "-") == 0) {
        s.summary = true;
        std::atexit(print_summary);
    } else if (!open_file("PYGGML_VDEV_LEDGER", s.file, error)) {
        return false;
    }
    on = true;
    return true;
}

} // namespace ledger
} // namespace vdev

using vdev::ledger::state;

void pyggml_vdev_ledger_enable(int on) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    s.in_memory      = on != 0;
    vdev::ledger::on = s.in_memory || s.file >= 0 || s.summary;
}

int pyggml_vdev_ledger_enabled(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    return s.in_memory;
}

void pyggml_vdev_ledger_clear(void) {
    vdev::Generation *                generation = vdev::current();
    auto &                            s          = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    s.records.clear();
    s.records.shrink_to_fit();
    s.sequence = 0;
    s.dropped  = 0;
    if (generation != nullptr) {
        for (auto & device : generation->devices) {
            device->graphs = 0;
        }
    }
}

uint64_t pyggml_vdev_ledger_count(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    return s.records.size();
}

uint64_t pyggml_vdev_ledger_dropped(void) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    return s.dropped;
}

uint64_t pyggml_vdev_ledger_read(struct pyggml_vdev_record * out, uint64_t first, uint64_t capacity) {
    auto &                            s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    if (out == nullptr || first >= s.records.size()) {
        return 0;
    }
    const uint64_t count = std::min<uint64_t>(capacity, s.records.size() - first);
    memcpy(out, s.records.data() + first, count * sizeof(*out));
    return count;
}

size_t pyggml_vdev_record_size(void) {
    return sizeof(pyggml_vdev_record);
}
