// Device memory: buffer types, buffers, and every way that bytes enter and leave them.
#include "vdev.hpp"

#include <cstdlib>
#include <cstring>

namespace vdev {

namespace {

struct Memory {
    Device *  device;
    void *    raw;
    uint8_t * base;
};

// Vtables differ between versions of ggml: members that came later are set only where they exist.
template <typename Iface, typename Set, typename Get>
auto set_2d_members(Iface & iface, Set set, Get get, int) -> decltype(iface.set_tensor_2d, void()) {
    iface.set_tensor_2d = set;
    iface.get_tensor_2d = get;
}

template <typename Iface, typename Set, typename Get> void set_2d_members(Iface &, Set, Get, long) {}

Memory & memory_of(ggml_backend_buffer_t buffer) {
    return *static_cast<Memory *>(buffer->context);
}

double mebibytes(uint64_t bytes) {
    return (double) bytes / (1 << 20);
}

// Takes `size` bytes from the device's budget.
bool reserve(Device & device, uint64_t size) {
    const uint64_t memory = device.traits().memory - device.traits().in_use;
    uint64_t       used   = device.used.load();
    do {
        if (size > memory || used > memory - size) {
            return false;
        }
    } while (!device.used.compare_exchange_weak(used, used + size));
    return true;
}

void buffer_free(ggml_backend_buffer_t buffer) {
    Memory & memory = memory_of(buffer);
    queues::before_free(*memory.device, buffer);
    if (races::on) {
        races::add_free(*memory.device, memory.base, buffer->size);
    }
    ledger::add({ PYGGML_VDEV_FREE, memory.device, buffer->size });
    memory.device->used -= buffer->size;
    free(memory.raw);
    delete &memory;
}

void * buffer_base(ggml_backend_buffer_t buffer) {
    return memory_of(buffer).base;
}

// The address of bytes in a tensor; leaving the buffer is what a GPU calls an illegal access.
uint8_t * at(const ggml_tensor * tensor, size_t offset, size_t span) {
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    const Memory &              memory = memory_of(buffer);
    uint8_t *                   from   = static_cast<uint8_t *>(tensor->data) + offset;
    if (from < memory.base || from + span > memory.base + buffer->size) {
        GGML_ABORT("%s: illegal access: tensor '%s', offset %zu, %zu bytes lie outside its buffer of %zu bytes",
                   memory.device->name.c_str(), tensor->name, offset, span, buffer->size);
    }
    return from;
}

size_t span_of(size_t size, size_t rows, size_t stride) {
    return rows == 0 ? 0 : (rows - 1) * stride + size;
}

void copy_rows(uint8_t * to, size_t to_stride, const uint8_t * from, size_t from_stride, size_t size,
               size_t rows) {
    for (size_t row = 0; row < rows; row++) {
        memcpy(to + row * to_stride, from + row * from_stride, size);
    }
}

void flip(uint8_t * data, size_t size, size_t rows, size_t stride, const pyggml_vdev_fault & fault) {
    const uint64_t byte = fault.byte % (size * rows);
    data[byte / size * stride + byte % size] ^= (uint8_t) fault.mask;
}

void buffer_memset(ggml_backend_buffer_t buffer, ggml_tensor * tensor, uint8_t value, size_t offset,
                   size_t size) {
    const Device & device = *memory_of(buffer).device;
    queues::before_access(*memory_of(buffer).device);
    if (races::on) {
        races::add_transfer({ nullptr, PYGGML_VDEV_MEMSET, &device, tensor }, { { at(tensor, offset, size), size, true } });
    }
    if (timeline::on) {
        timeline::add_transfer(nullptr, PYGGML_VDEV_MEMSET, device, nullptr, tensor, size, 1);
    }
    memset(at(tensor, offset, size), value, size);
    ledger::add({ PYGGML_VDEV_MEMSET, memory_of(buffer).device, size, 1, offset, 0, 0, nullptr, tensor->name });
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    write_tensor(nullptr, tensor, data, offset, size, 1, 0, 0, PYGGML_VDEV_SET);
}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    read_tensor(nullptr, tensor, data, offset, size, 1, 0, 0, PYGGML_VDEV_GET);
}

void buffer_set_2d(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size,
                   size_t rows, size_t stride, size_t data_stride) {
    write_tensor(nullptr, tensor, data, offset, size, rows, stride, data_stride, PYGGML_VDEV_SET_2D);
}

void buffer_get_2d(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size,
                   size_t rows, size_t stride, size_t data_stride) {
    read_tensor(nullptr, tensor, data, offset, size, rows, stride, data_stride, PYGGML_VDEV_GET_2D);
}

bool buffer_cpy(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    return copy_tensor(nullptr, src, dst);
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    Memory & memory = memory_of(buffer);
    queues::before_access(*memory.device);
    if (races::on) {
        races::add_transfer({ nullptr, PYGGML_VDEV_CLEAR, memory.device, nullptr }, { { memory.base, buffer->size, true } });
    }
    if (timeline::on) {
        timeline::add_transfer(nullptr, PYGGML_VDEV_CLEAR, *memory.device, nullptr, nullptr, buffer->size, 1);
    }
    memset(memory.base, value, buffer->size);
    ledger::add({ PYGGML_VDEV_CLEAR, memory.device, buffer->size });
}

// Kernels read whole padded rows, from an aligned address: both must be in the buffer. As CUDA's
// (ggml_backend_cuda_buffer_init_tensor), the padding of what is not a compute buffer becomes zero.
ggml_status buffer_init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    const Memory & memory = memory_of(buffer);
    const Device & device = *memory.device;
    if (tensor->view_src != nullptr || ggml_is_empty(tensor) || tensor->data == nullptr) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t size = ggml_nbytes(tensor), padded = padded_size(device.traits(), tensor);
    if (device.generation->config.strict && reinterpret_cast<uintptr_t>(tensor->data) % device.traits().alignment != 0) {
        GGML_ABORT("%s: illegal access: tensor '%s' is not aligned to %zu bytes", device.name.c_str(), tensor->name,
                   (size_t) device.traits().alignment);
    }
    if (padded > size) {
        uint8_t * padding = at(tensor, size, padded - size);
        if (ggml_backend_buffer_get_usage(buffer) != GGML_BACKEND_BUFFER_USAGE_COMPUTE) {
            memset(padding, 0, padded - size);
        }
    }
    return GGML_STATUS_SUCCESS;
}

ggml_backend_buffer_i buffer_interface(const Traits & traits) {
    ggml_backend_buffer_i iface{};
    iface.free_buffer   = buffer_free;
    iface.get_base      = buffer_base;
    iface.init_tensor   = buffer_init_tensor;
    iface.memset_tensor = buffer_memset;
    iface.set_tensor    = buffer_set;
    iface.get_tensor    = buffer_get;
    iface.cpy_tensor    = buffer_cpy;
    iface.clear         = buffer_clear;
    if (traits.native_2d) {
        set_2d_members(iface, buffer_set_2d, buffer_get_2d, 0);
    }
    return iface;
}

const char * type_name(ggml_backend_buffer_type_t type) {
    return static_cast<Device *>(type->context)->buffer_name.c_str();
}

ggml_backend_buffer_t refuse(Device & device, size_t size, const char * why) {
    GGML_LOG_ERROR("%s: cannot allocate %.2f MiB: %s (%.2f of %.2f MiB in use)\n", device.name.c_str(),
                   mebibytes(size), why, mebibytes(device.used), mebibytes(device.traits().memory - device.traits().in_use));
    ledger::add({ PYGGML_VDEV_ALLOC, &device, size, 1, 0, 0, PYGGML_VDEV_REFUSED });
    return nullptr;
}

ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    Device &       device = *static_cast<Device *>(type->context);
    const Traits & traits = device.traits();
    if (faults::strikes(PYGGML_VDEV_FAULT_ALLOC, device, size, "")) {
        return refuse(device, size, "injected fault");
    }
    if (traits.max_buffer != 0 && size > traits.max_buffer) {
        return refuse(device, size, "larger than the largest buffer");
    }
    if (!reserve(device, size)) {
        return refuse(device, size, "out of memory");
    }
    // Off by one alignment from twice the alignment: nobody may rely on more than was promised.
    void * raw = nullptr;
    if (size > SIZE_MAX - traits.alignment ||
        posix_memalign(&raw, 2 * traits.alignment, size + traits.alignment) != 0) {
        device.used -= size;
        return refuse(device, size, "the host has no such memory");
    }
    uint8_t * base = static_cast<uint8_t *>(raw) + traits.alignment;
    memset(base, device.generation->config.poison ? 0xff : 0x00, size);
    ledger::add({ PYGGML_VDEV_ALLOC, &device, size });
    return ggml_backend_buffer_init(type, buffer_interface(traits), new Memory{ &device, raw, base }, size);
}

size_t type_alignment(ggml_backend_buffer_type_t type) {
    return static_cast<Device *>(type->context)->traits().alignment;
}

size_t type_max_size(ggml_backend_buffer_type_t type) {
    const Traits & traits = static_cast<Device *>(type->context)->traits();
    return traits.max_buffer != 0 ? traits.max_buffer : SIZE_MAX;
}

size_t type_alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor * tensor) {
    return padded_size(static_cast<Device *>(type->context)->traits(), tensor);
}

bool type_is_host(ggml_backend_buffer_type_t) {
    return false;
}

// Pinned memory is ordinary memory; one type for all devices, as CUDA has it.
const char * host_type_name(ggml_backend_buffer_type_t) {
    return "VDEV_Host";
}

void host_free(ggml_backend_buffer_t buffer) {
    free(buffer->context);
}

ggml_backend_buffer_t host_alloc(ggml_backend_buffer_type_t type, size_t size) {
    void * data = nullptr;
    if (posix_memalign(&data, 4096, size) != 0) {
        return nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(data, size);
    buffer->buft                 = type;
    buffer->iface.free_buffer    = host_free;
    return buffer;
}

size_t host_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

bool host_is_host(ggml_backend_buffer_type_t) {
    return true;
}

} // namespace

void init_buffer_types(Generation & generation) {
    for (auto & device : generation.devices) {
        ggml_backend_buffer_type & type = device->buffer_type;
        type                            = {};
        type.iface.get_name             = type_name;
        type.iface.alloc_buffer         = type_alloc;
        type.iface.get_alignment        = type_alignment;
        type.iface.get_max_size         = type_max_size;
        type.iface.get_alloc_size       = type_alloc_size;
        type.iface.is_host              = type_is_host;
        type.device                     = &device->device;
        type.context                    = device.get();
    }
    ggml_backend_buffer_type & host = generation.host_buffer_type;
    host                            = {};
    host.iface.get_name             = host_type_name;
    host.iface.alloc_buffer         = host_alloc;
    host.iface.get_alignment        = host_alignment;
    host.iface.is_host              = host_is_host;
    host.device                     = &generation.devices[0]->device;
}

Device * device_of_buffer(ggml_backend_buffer_t buffer) {
    return buffer != nullptr && buffer->iface.free_buffer == buffer_free ? memory_of(buffer).device : nullptr;
}

namespace {

uint32_t flags_of(const Queue * queue) {
    return queue != nullptr ? (uint32_t) PYGGML_VDEV_ASYNC : 0u;
}

// Runs `work` on buffers: now if there is no queue or it does not wait, otherwise when the queue gets to it.
template <typename Work>
void submit(Queue * queue, Device & device, std::initializer_list<ggml_backend_buffer_t> buffers, Work && work) {
    if (queue != nullptr && !queues::at_once(device)) {
        queues::put(*queue, buffers, std::move(work));
        return;
    }
    work();
}

} // namespace

void write_tensor(Queue * queue, ggml_tensor * tensor, const void * data, size_t offset, size_t size, size_t rows,
                  size_t stride, size_t data_stride, uint32_t kind) {
    if (size == 0 || rows == 0) {
        return;
    }
    Device &          device = *device_of_buffer(buffer_of(tensor));
    uint8_t *         to     = at(tensor, offset, span_of(size, rows, stride));
    const uint8_t *   from   = static_cast<const uint8_t *>(data);
    pyggml_vdev_fault fault;
    const bool        flips = faults::strikes(PYGGML_VDEV_FAULT_SET, device, size * rows, tensor->name, nullptr, &fault);
    std::shared_ptr<uint8_t[]> staged;
    if (queue != nullptr && !queues::at_once(device) && device.generation->config.schedule.pageable) {
        staged.reset(new uint8_t[size * rows]);
        copy_rows(staged.get(), size, from, data_stride, size, rows);
        from        = staged.get();
        data_stride = size;
    }
    if (queue == nullptr) {
        queues::before_access(device);
    }
    if (races::on) {
        const size_t read = staged == nullptr ? size : 0;
        races::add_transfer({ queue, (pyggml_vdev_kind) kind, &device, tensor },
                            { { to, size, true, rows, stride }, { from, read, false, rows, data_stride } });
    }
    if (timeline::on) {
        timeline::add_transfer(queue, (pyggml_vdev_kind) kind, device, nullptr, tensor, size * rows, rows);
    }
    submit(queue, device, { buffer_of(tensor) }, [=, staged = std::move(staged)] {
        copy_rows(to, stride, from, data_stride, size, rows);
        if (flips) {
            flip(to, size, rows, stride, fault);
        }
        (void) staged;
    });
    const uint32_t flags = flags_of(queue) | (flips ? (uint32_t) PYGGML_VDEV_FLIPPED : 0u);
    ledger::add({ (pyggml_vdev_kind) kind, &device, size * rows, rows, offset, stride, flags, nullptr,
                  tensor->name });
}

void read_tensor(Queue * queue, const ggml_tensor * tensor, void * data, size_t offset, size_t size, size_t rows,
                 size_t stride, size_t data_stride, uint32_t kind) {
    if (size == 0 || rows == 0) {
        return;
    }
    Device &          device = *device_of_buffer(buffer_of(tensor));
    const uint8_t *   from   = at(tensor, offset, span_of(size, rows, stride));
    uint8_t *         to     = static_cast<uint8_t *>(data);
    pyggml_vdev_fault fault;
    const bool        flips = faults::strikes(PYGGML_VDEV_FAULT_GET, device, size * rows, tensor->name, nullptr, &fault);
    if (queue == nullptr) {
        queues::before_access(device);
    }
    if (races::on) {
        races::add_transfer({ queue, (pyggml_vdev_kind) kind, &device, tensor },
                            { { from, size, false, rows, stride }, { to, size, true, rows, data_stride } });
    }
    if (timeline::on) {
        timeline::add_transfer(queue, (pyggml_vdev_kind) kind, device, nullptr, tensor, size * rows, rows);
    }
    submit(queue, device, { buffer_of(tensor) }, [=] {
        copy_rows(to, data_stride, from, stride, size, rows);
        if (flips) {
            flip(to, size, rows, data_stride, fault);
        }
    });
    const uint32_t flags = flags_of(queue) | (flips ? (uint32_t) PYGGML_VDEV_FLIPPED : 0u);
    ledger::add({ (pyggml_vdev_kind) kind, &device, size * rows, rows, offset, stride, flags, nullptr,
                  tensor->name });
}

bool copy_tensor(Queue * queue, const ggml_tensor * src, ggml_tensor * dst) {
    Device * from = device_of_buffer(buffer_of(src));
    Device * to   = device_of_buffer(buffer_of(dst));
    if (from == nullptr || to == nullptr) {
        return false;
    }
    const size_t size  = ggml_nbytes(dst);
    const bool   done  = !faults::strikes(PYGGML_VDEV_FAULT_COPY, *to, size, dst->name);
    uint32_t     flags = flags_of(queue);
    if (!done) {
        flags |= PYGGML_VDEV_REFUSED;
    } else if (size > 0) {
        uint8_t *       target = at(dst, 0, size);
        const uint8_t * source = at(src, 0, size);
        if (queue == nullptr) {
            queues::before_access(*from);
            queues::before_access(*to);
        }
        if (races::on) {
            races::add_transfer({ queue, PYGGML_VDEV_CPY, to, dst, src },
                                { { source, size, false }, { target, size, true } });
        }
        if (timeline::on) {
            timeline::add_transfer(queue, PYGGML_VDEV_CPY, *to, from, dst, size, 1);
        }
        submit(queue, *to, { buffer_of(src), buffer_of(dst) }, [=] { memmove(target, source, size); });
    }
    ledger::add({ PYGGML_VDEV_CPY, to, size, 1, 0, 0, flags, from, dst->name });
    return done;
}

} // namespace vdev
