// The CPU backend, watched: which memory its graphs read and write.
#include "vdev.hpp"

namespace vdev {
namespace host {

namespace {

// There is one CPU device, and all its backends have the same functions.
decltype(ggml_backend_device_i::init_backend) original_init    = nullptr;
decltype(ggml_backend_i::graph_compute)       original_compute = nullptr;

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    if (races::on) {
        races::add_host_graph(*graph);
    }
    return original_compute(backend, graph);
}

ggml_backend_t init(ggml_backend_dev_t device, const char * params) {
    const ggml_backend_t backend = original_init(device, params);
    if (backend != nullptr) {
        original_compute             = backend->iface.graph_compute;
        backend->iface.graph_compute = compute;
    }
    return backend;
}

} // namespace

void watch() {
    const ggml_backend_dev_t device = cpu_device();
    if (device != nullptr && device->iface.init_backend != init) {
        original_init              = device->iface.init_backend;
        device->iface.init_backend = init;
    }
}

void unwatch(ggml_backend_t backend) {
    if (backend->iface.graph_compute == compute) {
        backend->iface.graph_compute = original_compute;
    }
}

} // namespace host
} // namespace vdev
