// What the files of the virtual devices share.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "pyggml-vdev.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace vdev {

// Checked configuration with the names split up.
struct Config {
    std::vector<std::string> names;
    uint64_t                 memory;
    uint64_t                 alignment;
    uint64_t                 max_buffer;
    uint32_t                 devices;
    uint32_t                 threads;
    uint32_t                 offload_batch;
    bool                     native_2d;
    bool                     host_buffer;
    bool                     async;
    bool                     poison;
    bool                     strict;
};

struct Generation;

struct Device {
    Generation *             generation;
    int32_t                  index;
    std::string              name;
    std::string              description;
    std::string              buffer_name;
    ggml_backend_buffer_type buffer_type;
    ggml_backend_device      device;
    std::atomic<uint64_t>    used{ 0 };
    std::atomic<uint32_t>    graphs{ 0 }; // since the ledger was cleared
};

// All devices of one configuration. Never freed: ggml keeps pointers to devices in caches of its own.
struct Generation {
    Config                               config;
    std::vector<std::unique_ptr<Device>> devices;
    ggml_backend_buffer_type             host_buffer_type;
    ggml_backend_reg                     reg;
    bool                                 registered = false;
};

// config.cpp
pyggml_vdev_config default_config();
bool               check_config(const pyggml_vdev_config & raw, Config & out, std::string & error);
bool               config_from_environment(Config & out, std::string & error);
bool               parse_size(const std::string & text, uint64_t & out); // 512M and the like

// registry.cpp
Generation *       current(); // NULL: nothing is configured yet
ggml_backend_dev_t cpu_device();

// buffer.cpp
void     init_buffer_types(Generation & generation);
Device * device_of_buffer(ggml_backend_buffer_t buffer); // NULL: not one of ours
void     write_tensor(ggml_tensor * tensor, const void * data, size_t offset, size_t size, size_t rows,
                      size_t stride, size_t data_stride, uint32_t kind, uint32_t flags);
void     read_tensor(const ggml_tensor * tensor, void * data, size_t offset, size_t size, size_t rows,
                     size_t stride, size_t data_stride, uint32_t kind, uint32_t flags);
bool     copy_tensor(const ggml_tensor * src, ggml_tensor * dst, uint32_t flags);

// backend.cpp
ggml_backend_t init_backend(Device & device);

// device.cpp
void init_device(Device & device);

inline Device & device_of(ggml_backend_dev_t device) {
    return *static_cast<Device *>(device->context);
}

inline ggml_backend_buffer_t buffer_of(const ggml_tensor * tensor) {
    return tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
}

// ledger.cpp
namespace ledger {

extern std::atomic<bool> on;

struct Event {
    pyggml_vdev_kind   kind;
    const Device *     device;
    uint64_t           bytes  = 0;
    uint64_t           rows   = 1;
    uint64_t           offset = 0;
    uint64_t           stride = 0;
    uint32_t           flags  = 0;
    const Device *     peer   = nullptr;
    const char *       tensor = "";
};

void append(const Event & event);
bool open_from_environment(std::string & error);

inline void add(const Event & event) {
    if (on.load(std::memory_order_relaxed)) {
        append(event);
    }
}

} // namespace ledger

// faults.cpp
namespace faults {

extern std::atomic<bool> any;

// Whether a fault strikes this event; a compute passes its graph, everything else a name.
bool strikes_slowly(pyggml_vdev_fault_kind kind, const Device & device, uint64_t bytes, const char * tensor,
                    const ggml_cgraph * graph, pyggml_vdev_fault * which);
bool parse(const std::string & text, std::string & error);

inline bool strikes(pyggml_vdev_fault_kind kind, const Device & device, uint64_t bytes, const char * tensor,
                    const ggml_cgraph * graph = nullptr, pyggml_vdev_fault * which = nullptr) {
    return any.load(std::memory_order_relaxed) && strikes_slowly(kind, device, bytes, tensor, graph, which);
}

} // namespace faults

// Keeps the text of an error for the caller of the C functions, one for each thread.
const char * keep_error(const std::string & error);

} // namespace vdev
