// Faults: what goes wrong on demand.
#include "vdev.hpp"

#include <fnmatch.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace vdev {
namespace faults {

std::atomic<bool> any{ false };

namespace {

struct Fault {
    pyggml_vdev_fault what;
    uint64_t          seen = 0;
    uint64_t          hits = 0;
};

struct State {
    std::mutex         mutex;
    std::vector<Fault> faults;
};

State & state() {
    static State * it = new State;
    return *it;
}

const char * const kind_names[] = { "alloc", "copy", "compute", "set", "get" };

bool matches(const pyggml_vdev_fault & fault, const char * tensor, const ggml_cgraph * graph) {
    if (fault.tensor[0] == '\0') {
        return true;
    }
    if (graph == nullptr) {
        return fnmatch(fault.tensor, tensor, 0) == 0;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (fnmatch(fault.tensor, graph->nodes[i]->name, 0) == 0) {
            return true;
        }
    }
    return false;
}

bool number(const std::string & text, uint64_t & out) {
    char * end = nullptr;
    if (text.empty() || text[0] == '-' || text[0] == '+') {
        return false;
    }
    out = std::strtoull(text.c_str(), &end, 0);
    return *end == '\0';
}

bool check(const pyggml_vdev_fault & fault, std::string & error) {
    if (fault.kind < PYGGML_VDEV_FAULT_ALLOC || fault.kind > PYGGML_VDEV_FAULT_GET) {
        error = "there is no fault kind " + std::to_string(fault.kind);
        return false;
    }
    const bool flips = fault.kind == PYGGML_VDEV_FAULT_SET || fault.kind == PYGGML_VDEV_FAULT_GET;
    if (flips && (fault.mask < 1 || fault.mask > 255)) {
        error = "a fault's mask is " + std::to_string(fault.mask) + "; 1 to 255 flip something";
        return false;
    }
    if (fault.device < -1 || fault.device >= PYGGML_VDEV_MAX_DEVICES) {
        error = "a fault is for device " + std::to_string(fault.device) + "; 0 to 15 exist, -1 means any";
        return false;
    }
    if (memchr(fault.tensor, '\0', sizeof(fault.tensor)) == nullptr) {
        error = "a fault's tensor pattern is longer than 63 characters";
        return false;
    }
    if (fault.kind == PYGGML_VDEV_FAULT_ALLOC && fault.tensor[0] != '\0') {
        error = "an alloc fault cannot go by tensor: buffers are allocated before tensors are placed";
        return false;
    }
    return true;
}

bool set_field(pyggml_vdev_fault & fault, const std::string & key, const std::string & value) {
    uint64_t n = 0;
    if (key == "tensor") {
        if (value.size() >= sizeof(fault.tensor)) {
            return false;
        }
        strncpy(fault.tensor, value.c_str(), sizeof(fault.tensor) - 1);
        return true;
    }
    if (key == "min") {
        return parse_size(value, fault.min_bytes);
    }
    if (!number(value, n)) {
        return false;
    }
    if (key == "nth") {
        fault.nth = n;
    } else if (key == "byte") {
        fault.byte = n;
    } else if (key == "device") {
        fault.device = (int32_t) std::min<uint64_t>(n, INT32_MAX);
    } else if (key == "mask") {
        fault.mask = (uint32_t) std::min<uint64_t>(n, UINT32_MAX);
    } else {
        return false;
    }
    return true;
}

bool parse_one(const std::string & text, pyggml_vdev_fault & fault, std::string & error) {
    const size_t      colon = text.find(':');
    const std::string kind  = text.substr(0, colon);
    fault                   = {};
    fault.kind              = -1;
    fault.device            = -1;
    fault.mask              = 0xff;
    for (int i = 0; i < 5; i++) {
        if (kind == kind_names[i]) {
            fault.kind = i;
        }
    }
    if (fault.kind < 0) {
        error = "fault \"" + text + "\": the kind must be alloc, copy, compute, set or get";
        return false;
    }
    size_t start = colon == std::string::npos ? text.size() : colon + 1;
    while (start < text.size()) {
        const size_t      end    = std::min(text.find(',', start), text.size());
        const std::string item   = text.substr(start, end - start);
        const size_t      equals = item.find('=');
        if (equals == std::string::npos || !set_field(fault, item.substr(0, equals), item.substr(equals + 1))) {
            error = "fault \"" + text + "\": \"" + item +
                    "\" is none of nth=N, device=N, min=SIZE, tensor=GLOB, byte=N, mask=N";
            return false;
        }
        start = end + 1;
    }
    if (!check(fault, error)) {
        error = "fault \"" + text + "\": " + error;
        return false;
    }
    return true;
}

void add(const std::vector<pyggml_vdev_fault> & faults) {
    State &                           s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    for (const auto & fault : faults) {
        s.faults.push_back({ fault });
    }
    any = !s.faults.empty();
}

} // namespace

bool strikes_slowly(pyggml_vdev_fault_kind kind, const Device & device, uint64_t bytes, const char * tensor,
                    const ggml_cgraph * graph, pyggml_vdev_fault * which) {
    State &                           s = state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    bool                              struck = false;
    for (Fault & fault : s.faults) {
        const pyggml_vdev_fault & f = fault.what;
        if (f.kind != (int32_t) kind || (f.device >= 0 && f.device != device.index) || bytes < f.min_bytes ||
            !matches(f, tensor, graph)) {
            continue;
        }
        fault.seen++;
        if (f.nth == 0 || f.nth == fault.seen) {
            fault.hits++;
            if (which != nullptr && !struck) {
                *which = f;
            }
            struck = true;
        }
    }
    return struck;
}

bool parse(const std::string & text, std::string & error) {
    std::vector<pyggml_vdev_fault> parsed;
    size_t                         start = 0;
    while (start < text.size()) {
        const size_t      end  = std::min(text.find(';', start), text.size());
        const std::string item = text.substr(start, end - start);
        if (!item.empty()) {
            parsed.emplace_back();
            if (!parse_one(item, parsed.back(), error)) {
                return false;
            }
        }
        start = end + 1;
    }
    add(parsed);
    return true;
}

} // namespace faults
} // namespace vdev

const char * pyggml_vdev_fault_add(const struct pyggml_vdev_fault * fault) {
    std::string error;
    if (!vdev::faults::check(*fault, error)) {
        return vdev::keep_error(error);
    }
    vdev::faults::add({ *fault });
    return nullptr;
}

const char * pyggml_vdev_fault_parse(const char * text) {
    std::string error;
    return vdev::faults::parse(text, error) ? nullptr : vdev::keep_error(error);
}

void pyggml_vdev_fault_clear(void) {
    auto &                            s = vdev::faults::state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    s.faults.clear();
    vdev::faults::any = false;
}

uint64_t pyggml_vdev_fault_hits(uint32_t number) {
    auto &                            s = vdev::faults::state();
    const std::lock_guard<std::mutex> guard(s.mutex);
    return number < s.faults.size() ? s.faults[number].hits : 0;
}
