// The set of devices in force, ggml's registry, and the two ways in which a program gets them unasked:
// GGML_BACKEND_PATH (ggml_backend_init below) and LD_PRELOAD (the constructor).
#include "vdev.hpp"

#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

extern "C" {
PYGGML_VDEV_API ggml_backend_reg_t ggml_backend_init(void);
PYGGML_VDEV_API int                ggml_backend_score(void);
// Read from the file by whoever wants to know what this library was compiled from.
PYGGML_VDEV_API extern const char  pyggml_vdev_fingerprint[];
#ifndef PYGGML_VDEV_FINGERPRINT
#define PYGGML_VDEV_FINGERPRINT ""
#endif
const char pyggml_vdev_fingerprint[] = "pyggml-vdev-fingerprint:" PYGGML_VDEV_FINGERPRINT ";";
}

namespace vdev {

namespace {

// Neither is ever destroyed: ggml uses devices until the very end of the process.
std::recursive_mutex & mutex() {
    static auto * it = new std::recursive_mutex;
    return *it;
}

Generation * in_force = nullptr;

const char * reg_name(ggml_backend_reg_t) {
    return "VDEV";
}

size_t reg_device_count(ggml_backend_reg_t reg) {
    return static_cast<Generation *>(reg->context)->devices.size();
}

ggml_backend_dev_t reg_device(ggml_backend_reg_t reg, size_t index) {
    return &static_cast<Generation *>(reg->context)->devices.at(index)->device;
}

Generation * make(const Config & config) {
    auto * generation         = new Generation{};
    generation->config        = config;
    generation->random        = config.schedule.seed;
    generation->reg           = {};
    generation->reg.api_version            = GGML_BACKEND_API_VERSION;
    generation->reg.iface.get_name         = reg_name;
    generation->reg.iface.get_device_count = reg_device_count;
    generation->reg.iface.get_device       = reg_device;
    generation->reg.context                = generation;
    for (uint32_t i = 0; i < config.devices; i++) {
        auto device         = std::make_unique<Device>();
        device->generation  = generation;
        device->index       = (int32_t) i;
        device->name        = config.names[i];
        device->description = "virtual device " + std::to_string(i);
        device->buffer_name = device->name;
        generation->devices.push_back(std::move(device));
    }
    init_buffer_types(*generation);
    for (auto & device : generation->devices) {
        init_device(*device);
    }
    return generation;
}

void unregister() {
    if (in_force != nullptr && in_force->registered) {
        ggml_backend_unload(&in_force->reg);
        in_force->registered = false;
    }
}

bool use_environment(std::string & error) {
    static bool read = false; // faults and the ledger's file count once
    Config      config;
    if (!config_from_environment(config, error)) {
        return false;
    }
    if (!read) {
        const char * fault = std::getenv("PYGGML_VDEV_FAULT");
        if (fault != nullptr && !faults::parse(fault, error)) {
            error = "PYGGML_VDEV_FAULT: " + error;
            return false;
        }
        if (!ledger::open_from_environment(error) || !timeline::open_from_environment(error)) {
            return false;
        }
        races::open_from_environment();
        read = true;
    }
    unregister();
    in_force = make(config);
    return true;
}

bool ensure(std::string & error) {
    return in_force != nullptr || use_environment(error);
}

bool foreign_is_registered() {
    const ggml_backend_reg_t reg = ggml_backend_reg_by_name("VDEV");
    return reg != nullptr && reg->iface.get_name != reg_name;
}

bool register_devices(std::string & error) {
    if (!ensure(error)) {
        return false;
    }
    if (in_force->registered) {
        return true;
    }
    if (foreign_is_registered()) {
        error = "another copy of the virtual devices is registered already";
        return false;
    }
    ggml_backend_register(&in_force->reg);
    in_force->registered = true;
    return true;
}

const char * base_name(const char * path) {
    const char * slash = strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

struct Search {
    uintptr_t self;
    bool      found;
};

// Whether one loaded object, neither this library nor one of ggml's own, was linked against ggml.
int look_for_ggml(dl_phdr_info * info, size_t, void * data) {
    Search &           search  = *static_cast<Search *>(data);
    const ElfW(Dyn) *  dynamic = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) & segment = info->dlpi_phdr[i];
        const uintptr_t    start   = info->dlpi_addr + segment.p_vaddr;
        if (segment.p_type == PT_LOAD && search.self >= start && search.self < start + segment.p_memsz) {
            return 0;
        }
        if (segment.p_type == PT_DYNAMIC) {
            dynamic = reinterpret_cast<const ElfW(Dyn) *>(start);
        }
    }
    if (dynamic == nullptr || strncmp(base_name(info->dlpi_name), "libggml", 7) == 0) {
        return 0;
    }
    uintptr_t strings = 0;
    for (const ElfW(Dyn) * entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB) {
            strings = entry->d_un.d_ptr;
        }
    }
    // glibc has made it an address already, except where the section is read-only.
    if (strings < info->dlpi_addr) {
        strings += info->dlpi_addr;
    }
    for (const ElfW(Dyn) * entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_NEEDED &&
            strncmp(reinterpret_cast<const char *>(strings) + entry->d_un.d_val, "libggml", 7) == 0) {
            search.found = true;
            return 1;
        }
    }
    return 0;
}

bool program_uses_ggml() {
    Search search{ reinterpret_cast<uintptr_t>(&look_for_ggml), false };
    dl_iterate_phdr(look_for_ggml, &search);
    return search.found;
}

// Under LD_PRELOAD, programs that never load backends get the devices as well. A shell or a Python that is
// started on the way is left alone: making ggml's registry would start real GPUs in it.
__attribute__((constructor)) void start() {
    const char * preload = std::getenv("LD_PRELOAD");
    if (preload == nullptr || strstr(preload, "libpyggml-vdev") == nullptr || !program_uses_ggml()) {
        return;
    }
    std::string error;
    if (!register_devices(error)) {
        fprintf(stderr, "pyggml: virtual devices: %s\n", error.c_str());
        _exit(2);
    }
}

} // namespace

Generation * current() {
    const std::lock_guard<std::recursive_mutex> guard(mutex());
    return in_force;
}

// Looked up when it is needed first: where backends are loaded dynamically, the CPU's may come after us.
ggml_backend_dev_t cpu_device() {
    static std::atomic<ggml_backend_dev_t> found{ nullptr };
    ggml_backend_dev_t                     device = found.load(std::memory_order_acquire);
    if (device == nullptr) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        found.store(device, std::memory_order_release);
    }
    return device;
}

const char * keep_error(const std::string & error) {
    thread_local std::string kept;
    kept = error;
    return kept.c_str();
}

} // namespace vdev

using Guard = std::lock_guard<std::recursive_mutex>;

ggml_backend_reg_t ggml_backend_init(void) {
    const Guard guard(vdev::mutex());
    std::string error;
    // The loader registers what is returned, and knows when it has it already.
    if (!vdev::ensure(error) || vdev::foreign_is_registered()) {
        GGML_LOG_ERROR("virtual devices: %s\n",
                       error.empty() ? "another copy of them is registered already" : error.c_str());
        return nullptr;
    }
    vdev::in_force->registered = true;
    return &vdev::in_force->reg;
}

int ggml_backend_score(void) {
    return 1;
}

void pyggml_vdev_config_default(struct pyggml_vdev_config * config) {
    *config = vdev::default_config();
}

const char * pyggml_vdev_configure(const struct pyggml_vdev_config * config) {
    const Guard  guard(vdev::mutex());
    vdev::Config checked;
    std::string  error;
    if (!vdev::check_config(*config, checked, error)) {
        return vdev::keep_error(error);
    }
    vdev::unregister();
    vdev::in_force = vdev::make(checked);
    return nullptr;
}

const char * pyggml_vdev_configure_from_environment(void) {
    const Guard guard(vdev::mutex());
    std::string error;
    return vdev::use_environment(error) ? nullptr : vdev::keep_error(error);
}

const char * pyggml_vdev_register(void) {
    const Guard guard(vdev::mutex());
    std::string error;
    return vdev::register_devices(error) ? nullptr : vdev::keep_error(error);
}

void pyggml_vdev_unregister(void) {
    const Guard guard(vdev::mutex());
    vdev::unregister();
}

uint32_t pyggml_vdev_count(void) {
    const vdev::Generation * generation = vdev::current();
    return generation != nullptr ? (uint32_t) generation->devices.size() : 0;
}

struct ggml_backend_device * pyggml_vdev_device(uint32_t index) {
    vdev::Generation * generation = vdev::current();
    return generation != nullptr && index < generation->devices.size() ? &generation->devices[index]->device :
                                                                         nullptr;
}

struct ggml_backend_reg * pyggml_vdev_reg(void) {
    vdev::Generation * generation = vdev::current();
    return generation != nullptr ? &generation->reg : nullptr;
}

uint64_t pyggml_vdev_memory_used(uint32_t index) {
    vdev::Generation * generation = vdev::current();
    return generation != nullptr && index < generation->devices.size() ?
               generation->devices[index]->used.load() :
               0;
}
