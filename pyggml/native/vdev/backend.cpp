// The backend (ggml's word for a stream of work): graphs go to a CPU backend of its own.
#include "vdev.hpp"

#include <cstring>

namespace vdev {

namespace {

struct Stream {
    Device *                      device;
    ggml_backend_t                cpu;
    ggml_backend_set_n_threads_t set_threads;
    std::shared_ptr<Queue>        queue;
};

ggml_guid_t guid() {
    static ggml_guid id = { 0x9b, 0x1e, 0x52, 0x0c, 0x6d, 0x77, 0x4a, 0x35,
                            0x8f, 0x21, 0xd0, 0x44, 0x7e, 0xa9, 0x13, 0xc6 };
    return &id;
}

Stream & stream_of(ggml_backend_t backend) {
    return *static_cast<Stream *>(backend->context);
}

const char * backend_name(ggml_backend_t backend) {
    return stream_of(backend).device->name.c_str();
}

// The host waits for all that was put into the queue.
void finish(const Stream & stream) {
    queues::finish(queues::mark(stream.queue));
    order::host_waits(*stream.queue);
}

void backend_free(ggml_backend_t backend) {
    Stream * stream = &stream_of(backend);
    finish(*stream);
    ggml_backend_free(stream->cpu);
    delete stream;
    delete backend;
}

// As CUDA's: only buffers of the stream's own device can be reached through it.
void check_device(ggml_backend_t backend, const ggml_tensor * tensor) {
    const Device * device = device_of_buffer(buffer_of(tensor));
    if (device != stream_of(backend).device) {
        GGML_ABORT("%s: tensor '%s' is not in this device's memory", backend_name(backend), tensor->name);
    }
}

void set_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    check_device(backend, tensor);
    write_tensor(stream_of(backend).queue.get(), tensor, data, offset, size, 1, 0, 0, PYGGML_VDEV_SET);
}

void get_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    check_device(backend, tensor);
    read_tensor(stream_of(backend).queue.get(), tensor, data, offset, size, 1, 0, 0, PYGGML_VDEV_GET);
}

void set_2d_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size,
                  size_t rows, size_t stride, size_t data_stride) {
    check_device(backend, tensor);
    write_tensor(stream_of(backend).queue.get(), tensor, data, offset, size, rows, stride, data_stride, PYGGML_VDEV_SET_2D);
}

void get_2d_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size,
                  size_t rows, size_t stride, size_t data_stride) {
    check_device(backend, tensor);
    read_tensor(stream_of(backend).queue.get(), tensor, data, offset, size, rows, stride, data_stride, PYGGML_VDEV_GET_2D);
}

// Vulkan's backend queues a copy from (pinned) memory of the host; CUDA's refuses it, and ggml then waits and copies.
bool upload_async(ggml_backend_t backend, const ggml_tensor * src, ggml_tensor * dst) {
    const Stream & stream = stream_of(backend);
    if (!stream.device->generation->config.schedule.uploads_queued || !ggml_backend_buffer_is_host(buffer_of(src)) ||
        device_of_buffer(buffer_of(dst)) != stream.device) {
        return false;
    }
    write_tensor(stream.queue.get(), dst, src->data, 0, ggml_nbytes(dst), 1, 0, 0, PYGGML_VDEV_SET);
    return true;
}

// As CUDA's: the copy is the source's work, and the destination goes on when it is done. Nothing makes the copy wait
// for what the destination still does with the memory.
bool cpy_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src,
               ggml_tensor * dst) {
    if (backend_src != nullptr && backend_src->iface.get_name != backend_name) {
        return upload_async(backend_dst, src, dst);
    }
    if (backend_src == nullptr ||
        device_of_buffer(buffer_of(src)) != stream_of(backend_src).device ||
        device_of_buffer(buffer_of(dst)) != stream_of(backend_dst).device) {
        return false;
    }
    const std::shared_ptr<Queue> & from = stream_of(backend_src).queue;
    const std::shared_ptr<Queue> & to   = stream_of(backend_dst).queue;
    if (!from->device->traits().async) {
        return false;
    }
    if (from->device->generation->config.schedule.copies_both) {
        queues::wait(*from, queues::mark(to));
        order::queue_waits(*from, *to);
    }
    if (!copy_tensor(from.get(), src, dst)) {
        return false;
    }
    queues::wait(*to, queues::mark(from));
    order::queue_waits(*to, *from);
    return true;
}

template <typename Iface, typename Set, typename Get>
auto set_2d_members(Iface & iface, Set set, Get get, int) -> decltype(iface.set_tensor_2d_async, void()) {
    iface.set_tensor_2d_async = set;
    iface.get_tensor_2d_async = get;
}

template <typename Iface, typename Set, typename Get> void set_2d_members(Iface &, Set, Get, long) {}

void synchronize(ggml_backend_t backend) {
    finish(stream_of(backend));
}

void event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    const std::shared_ptr<Queue> & queue = stream_of(backend).queue;
    recorded_by(event) = { queues::mark(queue), races::on ? races::clock_of(*queue) : Clock(), queue->last };
}

void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    Queue & queue = *stream_of(backend).queue;
    queues::wait(queue, recorded_by(event).mark);
    order::queue_waits(queue, recorded_by(event));
}

bool is_here(const Device & device, const ggml_tensor * node, const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    if (buffer == nullptr || ggml_is_empty(tensor) || device_of_buffer(buffer) == &device) {
        return true;
    }
    GGML_LOG_ERROR("%s: illegal access: '%s' (%s) uses '%s', which is in %s\n", device.name.c_str(), node->name,
                   ggml_op_name(node->op), tensor->name, ggml_backend_buffer_name(buffer));
    return false;
}

// A GPU cannot reach host memory or another device's, nor compute what it does not support; the CPU would hide that
// mistake.
bool is_possible(const Device & device, const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (touches_no_memory(node)) {
            continue;
        }
        if (refuses(device.traits(), node)) {
            GGML_LOG_ERROR("%s: unsupported: '%s' (%s), which the device refuses\n", device.name.c_str(), node->name,
                           ggml_op_desc(node));
            return false;
        }
        if (!is_here(device, node, node)) {
            return false;
        }
        for (const ggml_tensor * src : node->src) {
            if (src != nullptr && !is_here(device, node, src)) {
                return false;
            }
        }
    }
    return true;
}

// Operations that the CPU backend cuts into one partial sum per thread, so that the number of threads shows
// in the last bits: attention of a single query over a long cache (`use_split_kv_path` in ggml-cpu/ops.cpp,
// from 512 on) and the losses. They run on one thread.
bool depends_on_threads(const ggml_tensor * node) {
    return node->op == GGML_OP_FLASH_ATTN_EXT || node->op == GGML_OP_CROSS_ENTROPY_LOSS;
}

ggml_status compute(const Stream & stream, ggml_cgraph * graph) {
    const int threads = (int) stream.device->generation->config.threads;
    if (threads == 1) {
        return ggml_backend_graph_compute(stream.cpu, graph);
    }
    int start = 0;
    while (start < graph->n_nodes) {
        const bool alone = depends_on_threads(graph->nodes[start]);
        int        end   = start + 1;
        while (end < graph->n_nodes && depends_on_threads(graph->nodes[end]) == alone) {
            end++;
        }
        stream.set_threads(stream.cpu, alone ? 1 : threads);
        ggml_cgraph       part   = ggml_graph_view(graph, start, end);
        const ggml_status status = ggml_backend_graph_compute(stream.cpu, &part);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        start = end;
    }
    return GGML_STATUS_SUCCESS;
}

ggml_status compute_later(const Stream & stream, const ggml_cgraph & graph) {
    auto       copy    = std::make_shared<GraphCopy>(graph);
    const auto buffers = copy->buffers;
    // Nothing of the copy stays here: a thread that drops its share would be ordered with one that keeps another.
    queues::put(*stream.queue, buffers, [&stream, copy = std::move(copy)] {
        if (compute(stream, &copy->graph) != GGML_STATUS_SUCCESS) {
            const int nodes = copy->graph.n_nodes;
            GGML_ABORT("%s: computing the queued graph that ends in '%s' failed", stream.device->name.c_str(),
                       nodes > 0 ? copy->graph.nodes[nodes - 1]->name : "");
        }
    });
    return GGML_STATUS_SUCCESS;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    const Stream & stream = stream_of(backend);
    Device &       device = *stream.device;
    const char *   last   = graph->n_nodes > 0 ? graph->nodes[graph->n_nodes - 1]->name : "";
    ggml_status    status = GGML_STATUS_FAILED;
    if (faults::strikes(PYGGML_VDEV_FAULT_COMPUTE, device, 0, "", graph)) {
        GGML_LOG_ERROR("%s: computing the graph that ends in '%s' fails: injected fault\n", device.name.c_str(),
                       last);
    } else if (!device.generation->config.strict || is_possible(device, graph)) {
        if (races::on) {
            races::add_graph(*stream.queue, *graph);
        }
        if (timeline::on) {
            timeline::add_graph(*stream.queue, *graph);
        }
        status = queues::at_once(device) ? compute(stream, graph) : compute_later(stream, *graph);
        if (!device.traits().async) {
            order::host_waits(*stream.queue);
        }
    }
    const uint32_t flags = status == GGML_STATUS_SUCCESS ? 0u : (uint32_t) PYGGML_VDEV_REFUSED;
    ledger::add({ PYGGML_VDEV_COMPUTE, &device, 0, (uint64_t) graph->n_nodes, 0, 0, flags, nullptr, last });
    device.graphs++;
    return status;
}

} // namespace

bool touches_no_memory(const ggml_tensor * node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE || ggml_is_empty(node);
}

ggml_backend_t init_backend(Device & device) {
    const Config &           config = device.generation->config;
    if (races::on) {
        host::watch(); // at the latest: a program's devices may be older than its registry's CPU device
    }
    const ggml_backend_dev_t cpu    = cpu_device();
    ggml_backend_t           inner  = cpu != nullptr ? ggml_backend_dev_init(cpu, nullptr) : nullptr;
    if (inner == nullptr) {
        GGML_LOG_ERROR("%s: ggml has no CPU device to compute on\n", device.name.c_str());
        return nullptr;
    }
    const auto set_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(cpu), "ggml_backend_set_n_threads");
    host::unwatch(inner);
    GGML_ASSERT(set_threads != nullptr && "the CPU backend lets nobody set its threads");
    set_threads(inner, (int) config.threads);

    ggml_backend_t backend = new ggml_backend{};
    ggml_backend_i & iface = backend->iface;
    iface.get_name         = backend_name;
    iface.free             = backend_free;
    iface.graph_compute    = graph_compute;
    const Traits & traits = device.traits();
    if (traits.async) {
        iface.cpy_tensor_async = cpy_async;
        iface.synchronize      = synchronize;
        if (traits.events) {
            iface.event_record = event_record;
            iface.event_wait   = event_wait;
        }
    }
    if (traits.async && !config.schedule.transfers_block) {
        iface.set_tensor_async = set_async;
        iface.get_tensor_async = get_async;
        if (traits.native_2d) {
            set_2d_members(iface, set_2d_async, get_2d_async, 0);
        }
    }
    backend->guid    = guid();
    backend->device  = &device.device;
    backend->context = new Stream{ &device, inner, set_threads, queues::make(device) };
    return backend;
}

} // namespace vdev
