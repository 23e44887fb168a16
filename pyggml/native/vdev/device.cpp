// The device as ggml sees it.
#include "vdev.hpp"

namespace vdev {

namespace {

const char * get_name(ggml_backend_dev_t dev) {
    return device_of(dev).name.c_str();
}

const char * get_description(ggml_backend_dev_t dev) {
    return device_of(dev).description.c_str();
}

void get_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    const Device & device = device_of(dev);
    *total                = device.traits().memory;
    *free                 = *total - device.traits().in_use - device.used;
}

enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

template <typename Caps> auto set_mmap_support(Caps & caps, int) -> decltype(caps.mmap_support, void()) {
    caps.mmap_support = true;
}

template <typename Caps> void set_mmap_support(Caps &, long) {}

void get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    const Config & config = device_of(dev).generation->config;
    props->name           = get_name(dev);
    props->description    = get_description(dev);
    props->type           = get_type(dev);
    get_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.async       = device_of(dev).traits().async;
    props->caps.events      = device_of(dev).traits().events;
    props->caps.host_buffer = config.host_buffer;
    set_mmap_support(props->caps, 0);
}

ggml_backend_t init(ggml_backend_dev_t dev, const char *) {
    return init_backend(device_of(dev));
}

ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t dev) {
    return &device_of(dev).buffer_type;
}

ggml_backend_buffer_type_t get_host_buffer_type(ggml_backend_dev_t dev) {
    return &device_of(dev).generation->host_buffer_type;
}

bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    const ggml_backend_dev_t cpu = cpu_device();
    return cpu != nullptr && ggml_backend_dev_supports_op(cpu, op) && !refuses(device_of(dev).traits(), op);
}

bool supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    return type == &device_of(dev).buffer_type;
}

// The rule of ggml-cuda: with a large enough batch, copying a host weight over is worth it.
bool offload_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    const int64_t minimum = device_of(dev).generation->config.offload_batch;
    int64_t       batch   = 0;
    switch (op->op) {
        case GGML_OP_GET_ROWS: break;
        case GGML_OP_MUL_MAT: batch = op->ne[1]; break;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK: batch = op->ne[2]; break;
        default: batch = ggml_nrows(op); break;
    }
    return batch >= minimum;
}

ggml_backend_event_t event_new(ggml_backend_dev_t dev) {
    return new ggml_backend_event{ dev, new Recorded };
}

void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete &recorded_by(event);
    delete event;
}

void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    queues::finish(recorded_by(event).mark);
    order::host_waits(recorded_by(event));
}

} // namespace

void init_device(Device & device) {
    const Config &          config = device.generation->config;
    ggml_backend_device_i & iface  = device.device.iface;
    iface                          = {};
    iface.get_name                 = get_name;
    iface.get_description          = get_description;
    iface.get_memory               = get_memory;
    iface.get_type                 = get_type;
    iface.get_props                = get_props;
    iface.init_backend             = init;
    iface.get_buffer_type          = get_buffer_type;
    iface.supports_op              = supports_op;
    iface.supports_buft            = supports_buft;
    if (config.host_buffer) {
        iface.get_host_buffer_type = get_host_buffer_type;
    }
    if (config.offload_batch > 0) {
        iface.offload_op = offload_op;
    }
    if (device.traits().events) {
        iface.event_new         = event_new;
        iface.event_free        = event_free;
        iface.event_synchronize = event_synchronize;
    }
    device.device.reg     = &device.generation->reg;
    device.device.context = &device;
}

} // namespace vdev
