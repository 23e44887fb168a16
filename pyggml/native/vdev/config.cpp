// The configuration: defaults, checks, and the environment variables.
#include "vdev.hpp"

#include <strings.h>

#include <cctype>
#include <cstdlib>

namespace vdev {

namespace {

constexpr uint64_t min_alignment = 16;
constexpr uint64_t max_alignment = 2u << 20;
constexpr uint32_t max_threads   = 512; // GGML_MAX_N_THREADS
constexpr size_t   max_name      = 255;

bool check_names(const std::vector<std::string> & names, std::string & error) {
    for (size_t i = 0; i < names.size(); i++) {
        const std::string & name = names[i];
        if (name.empty() || name.size() > max_name) {
            error = "a device name has " + std::to_string(name.size()) + " characters; 1 to 255 are possible";
            return false;
        }
        for (const char c : name) {
            if (std::iscntrl((unsigned char) c)) {
                error = "a device name holds a control character";
                return false;
            }
        }
        for (size_t j = 0; j < i; j++) {
            // ggml_backend_dev_by_name ignores case.
            if (strcasecmp(names[j].c_str(), name.c_str()) == 0) {
                error = "two devices are named " + name + " (upper and lower case count as the same)";
                return false;
            }
        }
    }
    return true;
}

bool parse_switch(const std::string & text, uint64_t & out) {
    for (const char * yes : { "1", "on", "yes", "true" }) {
        if (strcasecmp(text.c_str(), yes) == 0) {
            out = 1;
            return true;
        }
    }
    for (const char * no : { "0", "off", "no", "false" }) {
        if (strcasecmp(text.c_str(), no) == 0) {
            out = 0;
            return true;
        }
    }
    return false;
}

// Reads one variable; leaves `value` alone when it is not set or empty.
bool read_variable(const char * name, bool (*parse)(const std::string &, uint64_t &), const char * expected,
                   uint64_t & value, std::string & error) {
    const char * text = std::getenv(name);
    if (text == nullptr || *text == '\0' || parse(text, value)) {
        return true;
    }
    error = std::string(name) + " is \"" + text + "\": " + expected + " is expected";
    return false;
}

} // namespace

std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> parts;
    size_t                   start = 0;
    for (size_t end; (end = text.find(separator, start)) != std::string::npos; start = end + 1) {
        parts.push_back(text.substr(start, end - start));
    }
    parts.push_back(text.substr(start));
    return parts;
}

bool parse_number(const std::string & text, uint64_t & out) {
    if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 18) {
        return false;
    }
    out = std::strtoull(text.c_str(), nullptr, 10);
    return true;
}

bool is_alignment(uint64_t bytes) {
    return bytes >= min_alignment && bytes <= max_alignment && (bytes & (bytes - 1)) == 0;
}

bool parse_size(const std::string & text, uint64_t & out) {
    size_t digits = 0;
    while (digits < text.size() && std::isdigit((unsigned char) text[digits])) {
        digits++;
    }
    uint64_t number;
    if (!parse_number(text.substr(0, digits), number)) {
        return false;
    }
    std::string unit = text.substr(digits);
    if (!unit.empty() && (unit.back() == 'B' || unit.back() == 'b')) {
        unit.pop_back();
    }
    if (unit.size() == 2 && (unit[1] == 'i' || unit[1] == 'I')) {
        unit.pop_back();
    }
    int shift = 0;
    if (unit.size() == 1) {
        switch (std::toupper((unsigned char) unit[0])) {
            case 'K': shift = 10; break;
            case 'M': shift = 20; break;
            case 'G': shift = 30; break;
            case 'T': shift = 40; break;
            default: return false;
        }
    } else if (!unit.empty()) {
        return false;
    }
    if (number > (UINT64_MAX >> shift)) {
        return false;
    }
    out = number << shift;
    return true;
}

// NAME[:SEED] and then /OPTION=VALUE as often as one likes.
bool parse_schedule(const std::string & text, Schedule & out, std::string & error) {
    const std::vector<std::string> parts = split(text, '/');
    out                                  = {};
    if (parts[0] == "late") {
        out.kind = Schedule::late;
    } else if (parts[0] == "threads") {
        out.kind = Schedule::threads;
    } else if (parts[0].rfind("random:", 0) == 0 && parse_number(parts[0].substr(7), out.seed)) {
        out.kind = Schedule::random;
    } else if (parts[0] != "at-once") {
        error = "the schedule \"" + text + "\" is none of at-once, late, random:SEED, threads";
        return false;
    }
    const struct {
        const char * text;
        bool &       option;
        bool         value;
    } known[] = {
        { "copies=source", out.copies_both, false },  { "copies=both", out.copies_both, true },
        { "host=pinned", out.pageable, false },       { "host=pageable", out.pageable, true },
        { "access=passes", out.access_waits, false }, { "access=waits", out.access_waits, true },
        { "uploads=refused", out.uploads_queued, false }, { "uploads=queued", out.uploads_queued, true },
        { "transfers=queued", out.transfers_block, false }, { "transfers=blocking", out.transfers_block, true },
    };
    for (size_t i = 1; i < parts.size(); i++) {
        bool found = false;
        for (const auto & one : known) {
            if (parts[i] == one.text) {
                one.option = one.value;
                found      = true;
            }
        }
        if (!found) {
            error = "the schedule \"" + text + "\" has the option \"" + parts[i] +
                    "\"; there are copies=source, copies=both, host=pinned, host=pageable, access=passes, "
                    "access=waits, uploads=refused, uploads=queued, transfers=queued, transfers=blocking";
            return false;
        }
    }
    return true;
}

pyggml_vdev_config default_config() {
    pyggml_vdev_config config{};
    config.names         = nullptr;
    config.memory        = 8ull << 30;
    config.alignment     = 128; // as CUDA's
    config.max_buffer    = 0;
    config.devices       = 2;
    config.threads       = 1;
    config.offload_batch = 32; // as CUDA's
    config.native_2d     = 1;
    config.host_buffer   = 0;
    config.async         = 1;
    config.poison        = 1;
    config.strict        = 1;
    config.schedule      = nullptr;
    config.traits        = nullptr;
    return config;
}

bool check_config(const pyggml_vdev_config & raw, Config & out, std::string & error) {
    if (raw.devices < 1 || raw.devices > PYGGML_VDEV_MAX_DEVICES) {
        error = std::to_string(raw.devices) + " virtual devices asked for; 1 to " +
                std::to_string((int) PYGGML_VDEV_MAX_DEVICES) + " are possible";
        return false;
    }
    if (raw.memory == 0) {
        error = "a device memory of 0 bytes is asked for; at least 1 is needed";
        return false;
    }
    if (!is_alignment(raw.alignment)) {
        error = "a buffer alignment of " + std::to_string(raw.alignment) +
                " bytes is asked for; a power of two from 16 to 2097152 is possible";
        return false;
    }
    if (raw.threads < 1 || raw.threads > max_threads) {
        error = std::to_string(raw.threads) + " threads per device asked for; 1 to 512 are possible";
        return false;
    }
    if (!parse_schedule(raw.schedule != nullptr && *raw.schedule != '\0' ? raw.schedule : "at-once", out.schedule,
                        error)) {
        return false;
    }
    out.names.clear();
    if (raw.names != nullptr && *raw.names != '\0') {
        out.names = split(raw.names, ',');
        if (out.names.size() != raw.devices) {
            error = std::to_string(out.names.size()) + " names given for " + std::to_string(raw.devices) +
                    " virtual devices";
            return false;
        }
        if (!check_names(out.names, error)) {
            return false;
        }
    } else {
        for (uint32_t i = 0; i < raw.devices; i++) {
            out.names.push_back("VDEV" + std::to_string(i));
        }
    }
    out.devices       = raw.devices;
    out.threads       = raw.threads;
    out.offload_batch = raw.offload_batch;
    out.host_buffer   = raw.host_buffer != 0;
    out.poison        = raw.poison != 0;
    out.strict        = raw.strict != 0;

    Traits traits;
    traits.memory     = raw.memory;
    traits.alignment  = raw.alignment;
    traits.max_buffer = raw.max_buffer;
    traits.native_2d  = raw.native_2d != 0;
    traits.async      = raw.async != 0;
    traits.events     = traits.async;
    out.traits.assign(raw.devices, traits);
    return raw.traits == nullptr || parse_traits(raw.traits, out.traits, error);
}

bool config_from_environment(Config & out, std::string & error) {
    pyggml_vdev_config raw = default_config();
    raw.names              = std::getenv("PYGGML_VDEV_NAMES");
    if (raw.names != nullptr && *raw.names != '\0') {
        raw.devices = (uint32_t) split(raw.names, ',').size();
    }
    uint64_t devices = raw.devices, threads = raw.threads, batch = raw.offload_batch;
    uint64_t native_2d = raw.native_2d, host = raw.host_buffer, async = raw.async, poison = raw.poison,
             strict       = raw.strict;
    const char * a_number = "a whole number";
    const char * a_size   = "a size such as 512M";
    const char * a_switch = "0 or 1";
    const bool   read     = read_variable("PYGGML_VDEV_DEVICES", parse_number, a_number, devices, error) &&
                      read_variable("PYGGML_VDEV_MEMORY", parse_size, a_size, raw.memory, error) &&
                      read_variable("PYGGML_VDEV_ALIGNMENT", parse_size, a_size, raw.alignment, error) &&
                      read_variable("PYGGML_VDEV_MAX_BUFFER", parse_size, a_size, raw.max_buffer, error) &&
                      read_variable("PYGGML_VDEV_THREADS", parse_number, a_number, threads, error) &&
                      read_variable("PYGGML_VDEV_OFFLOAD_BATCH", parse_number, a_number, batch, error) &&
                      read_variable("PYGGML_VDEV_2D", parse_switch, a_switch, native_2d, error) &&
                      read_variable("PYGGML_VDEV_HOST_BUFFER", parse_switch, a_switch, host, error) &&
                      read_variable("PYGGML_VDEV_ASYNC", parse_switch, a_switch, async, error) &&
                      read_variable("PYGGML_VDEV_POISON", parse_switch, a_switch, poison, error) &&
                      read_variable("PYGGML_VDEV_STRICT", parse_switch, a_switch, strict, error);
    if (!read) {
        return false;
    }
    raw.devices       = (uint32_t) std::min<uint64_t>(devices, UINT32_MAX);
    raw.threads       = (uint32_t) std::min<uint64_t>(threads, UINT32_MAX);
    raw.offload_batch = (uint32_t) std::min<uint64_t>(batch, INT32_MAX);
    raw.native_2d     = (uint32_t) native_2d;
    raw.host_buffer   = (uint32_t) host;
    raw.async         = (uint32_t) async;
    raw.poison        = (uint32_t) poison;
    raw.strict        = (uint32_t) strict;
    raw.schedule      = std::getenv("PYGGML_VDEV_SCHEDULE");
    raw.traits        = std::getenv("PYGGML_VDEV_TRAITS");
    return check_config(raw, out, error);
}

} // namespace vdev
