// What the files of the virtual devices share.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "pyggml-vdev.h"

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace vdev {

// When queued work runs, and the points on which backends differ.
struct Schedule {
    enum Kind { at_once, late, random, threads };

    Kind     kind            = at_once;
    uint64_t seed            = 0;
    bool     copies_both     = false; // a copy waits for the destination's queue as well, as Metal's
    bool     pageable        = false; // bytes of the host are read at the call, not when the work runs
    bool     access_waits    = false; // a blocking access to a buffer waits for the device's queues, as SYCL's
    bool     uploads_queued  = false; // a copy from memory of the host is queued, as Vulkan's; CUDA refuses it
    bool     transfers_block = false; // graphs are queued, but there are no set_tensor_async and get_tensor_async
};

// Operations that a device does not support.
struct Refusal {
    std::string operation; // empty: all
    int         type = -1; // of the result or a source; -1: any
};

// What may differ from device to device.
struct Traits {
    uint64_t             memory;
    uint64_t             in_use = 0; // bytes of the memory that something else holds
    uint64_t             alignment;
    uint64_t             max_buffer;      // 0: no limit of its own
    uint64_t             row_padding = 0; // elements to which get_alloc_size pads the last row of a quantised tensor
    bool                 native_2d;
    bool                 async;
    bool                 events;
    std::vector<Refusal> refuses;
};

// Checked configuration with the names split up.
struct Config {
    std::vector<std::string> names;
    std::vector<Traits>      traits; // of each device
    uint32_t                 devices;
    uint32_t                 threads;
    uint32_t                 offload_batch;
    bool                     host_buffer;
    bool                     poison;
    bool                     strict;
    Schedule                 schedule;
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

    const Traits & traits() const;
};

struct Queue;

// A vector clock: for the host and each queue, how many of its operations have happened before.
using Clock = std::vector<uint64_t>;

// Everything that was put into a queue up to a certain call; without a queue, nothing.
struct Mark {
    std::shared_ptr<Queue> queue;
    uint64_t               number = 0;
};

// How much of a queue its thread has done. Never freed, so that other threads can look at it without a lock.
using Progress = std::atomic<uint64_t>;

void wait_until_done(const Progress & done, uint64_t number);

// The thread of a queue. It takes no lock, and the host takes none against it: a lock would order more than the calls
// do, and hide from the thread sanitizer what they leave unordered.
class Worker {
  public:
    explicit Worker(Progress & done);
    Worker(const Worker &) = delete;
    ~Worker();

    // The number-th of the other queue's work must be done before `run`; NULL: nothing must.
    void put(std::function<void()> run, const Progress * other, uint64_t number);

  private:
    struct Node;

    void append(Node * node);
    void work(Node * node);

    Progress &  done_;
    Node *      last_;
    sem_t       ready_; // counts the nodes that wait
    std::thread thread_;
};

// What one backend instance has been told to do and has not done yet, first in, first out.
struct Queue {
    struct Item {
        std::function<void()> run;  // empty: only waits
        Mark                  mark; // must be done before
    };

    Device *         device;
    std::deque<Item> items;
    uint64_t         issued = 0;
    uint64_t         done   = 0;
    size_t           actor  = 0; // its place in clocks
    Clock            clock;      // what is put in next comes after it
    uint64_t         last   = 0; // the number of the last operation in the timeline
    uint64_t         pace   = 1; // under a random schedule: gets on with its work at every pace-th call or so

    std::unordered_map<ggml_backend_buffer_t, uint64_t> last_use; // of a buffer: the number of the work

    // Under the schedule `threads` items and done are not used.
    Progress *              progress = nullptr;
    std::unique_ptr<Worker> worker;
};

// All devices of one configuration. Never freed: ggml keeps pointers to devices in caches of its own.
struct Generation {
    Config                               config;
    std::vector<std::unique_ptr<Device>> devices;
    ggml_backend_buffer_type             host_buffer_type;
    ggml_backend_reg                     reg;
    bool                                 registered = false;
    std::recursive_mutex                 mutex; // of all queues; their threads do not take it
    std::vector<std::weak_ptr<Queue>>    queues;
    uint64_t                             random = 0;
    std::deque<Progress>                 progress;
};

inline const Traits & Device::traits() const {
    return generation->config.traits[(size_t) index];
}

// config.cpp
pyggml_vdev_config default_config();
bool               check_config(const pyggml_vdev_config & raw, Config & out, std::string & error);
bool               config_from_environment(Config & out, std::string & error);
bool               parse_schedule(const std::string & text, Schedule & out, std::string & error);
bool               parse_size(const std::string & text, uint64_t & out); // 512M and the like
bool               parse_number(const std::string & text, uint64_t & out);
bool               is_alignment(uint64_t bytes);
std::vector<std::string> split(const std::string & text, char separator);

// traits.cpp
bool   parse_traits(const std::string & text, std::vector<Traits> & devices, std::string & error);
size_t padded_size(const Traits & traits, const ggml_tensor * tensor);
bool   refuses(const Traits & traits, const ggml_tensor * node);

// registry.cpp
Generation *       current(); // NULL: nothing is configured yet
ggml_backend_dev_t cpu_device();

// queue.cpp
namespace queues {

inline bool at_once(const Device & device) {
    return device.generation->config.schedule.kind == Schedule::at_once || !device.traits().async;
}

std::shared_ptr<Queue> make(Device & device);
// Only where the schedule is not at-once.
void put(Queue & queue, const std::vector<ggml_backend_buffer_t> & buffers, std::function<void()> run);
void wait(Queue & queue, const Mark & mark); // what is put into the queue from now on waits for the mark
Mark mark(const std::shared_ptr<Queue> & queue);
void finish(const Mark & mark);                                    // runs all of it
void before_access(Device & device);                               // a blocking access to a buffer of the device
void before_free(Device & device, ggml_backend_buffer_t buffer);

} // namespace queues

// buffer.cpp; without a queue the caller waits, as for the functions of a buffer
void     init_buffer_types(Generation & generation);
Device * device_of_buffer(ggml_backend_buffer_t buffer); // NULL: not one of ours
void     write_tensor(Queue * queue, ggml_tensor * tensor, const void * data, size_t offset, size_t size, size_t rows,
                      size_t stride, size_t data_stride, uint32_t kind);
void     read_tensor(Queue * queue, const ggml_tensor * tensor, void * data, size_t offset, size_t size, size_t rows,
                     size_t stride, size_t data_stride, uint32_t kind);
bool     copy_tensor(Queue * queue, const ggml_tensor * src, ggml_tensor * dst);

// graph.cpp
// A copy of a graph that stays as it is when the caller's tensors change, over the same data.
struct GraphCopy {
    explicit GraphCopy(const ggml_cgraph & graph);
    GraphCopy(const GraphCopy &) = delete;

    ggml_cgraph                        graph{};
    std::vector<ggml_backend_buffer_t> buffers; // that its tensors are in

  private:
    ggml_tensor * add(const ggml_tensor * tensor);

    std::deque<ggml_tensor>     tensors_;
    std::vector<ggml_tensor *>  nodes_;
    std::vector<ggml_tensor *>  keys_;
    std::vector<ggml_bitset_t>  used_;
    std::vector<int32_t>        use_counts_;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies_;
};

// backend.cpp
ggml_backend_t init_backend(Device & device);

bool           touches_no_memory(const ggml_tensor * node);

// host.cpp: what the CPU backend computes is seen by the checker of races.
namespace host {

void watch();                       // the CPU backends that are made from now on
void unwatch(ggml_backend_t backend); // this one

} // namespace host

// device.cpp
void init_device(Device & device);

inline Device & device_of(ggml_backend_dev_t device) {
    return *static_cast<Device *>(device->context);
}

// What an event has recorded.
struct Recorded {
    Mark     mark;
    Clock    clock;
    uint64_t last = 0; // Queue::last
};

inline Recorded & recorded_by(ggml_backend_event_t event) {
    return *static_cast<Recorded *>(event->context);
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

extern const char * const kind_names[10];

void append(const Event & event);
// The file that a variable names, with the process's number for %p; leaves `file` alone if there is none.
bool open_file(const char * variable, int & file, std::string & error);
// A full disk must not end the program: it is said once, with `number`, the last record, and nothing more is written.
void write_all(const char * what, int & file, const std::string & lines, uint64_t number);
void quote(std::string & out, const char * text); // as JSON
bool open_from_environment(std::string & error);

inline void add(const Event & event) {
    if (on.load(std::memory_order_relaxed)) {
        append(event);
    }
}

} // namespace ledger

// races.cpp
namespace races {

extern std::atomic<bool> on;

// Bytes that an operation reads or writes.
struct Access {
    const void * data;
    size_t       size;
    bool         writes;
    size_t       rows   = 1;
    size_t       stride = 0; // from row to row
};

// What one transfer does; without a queue it is the host's, which waits for it.
struct Transfer {
    Queue *            queue;
    pyggml_vdev_kind   kind;
    const Device *     device; // of the memory
    const ggml_tensor * tensor;
    const ggml_tensor * source = nullptr; // of a copy
};

size_t new_actor(const Device & device);
void   add_transfer(const Transfer & transfer, std::initializer_list<Access> accesses);
void   add_graph(Queue & queue, const ggml_cgraph & graph);
void   add_host_graph(const ggml_cgraph & graph); // of the CPU backend
void   add_free(const Device & device, const void * data, size_t size);
Clock  clock_of(const Queue & queue);
void   queue_waits(Queue & queue, const Clock & clock);
void   host_waits(const Clock & clock);
void   open_from_environment();

} // namespace races

// timeline.cpp
namespace timeline {

extern std::atomic<bool> on;

// Without a queue the host does it and waits for it.
void add_transfer(Queue * queue, pyggml_vdev_kind kind, const Device & device, const Device * peer,
                  const ggml_tensor * tensor, uint64_t bytes, uint64_t rows);
void add_graph(Queue & queue, const ggml_cgraph & graph);
void add_wait(const Queue * queue, uint64_t operation); // no queue: the host waits
bool open_from_environment(std::string & error);

} // namespace timeline

// Who waits for what, for those who look for it: races and the timeline.
namespace order {

inline bool watched() {
    return races::on || timeline::on;
}

inline void host_waits(const Queue & queue) {
    if (races::on) {
        races::host_waits(races::clock_of(queue));
    }
    if (timeline::on) {
        timeline::add_wait(nullptr, queue.last);
    }
}

inline void host_waits(const Recorded & recorded) {
    if (races::on) {
        races::host_waits(recorded.clock);
    }
    if (timeline::on) {
        timeline::add_wait(nullptr, recorded.last);
    }
}

inline void queue_waits(Queue & queue, const Queue & other) {
    if (races::on) {
        races::queue_waits(queue, races::clock_of(other));
    }
    if (timeline::on) {
        timeline::add_wait(&queue, other.last);
    }
}

inline void queue_waits(Queue & queue, const Recorded & recorded) {
    if (races::on) {
        races::queue_waits(queue, recorded.clock);
    }
    if (timeline::on) {
        timeline::add_wait(&queue, recorded.last);
    }
}

} // namespace order

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
