// The queues: work that is put in runs when the schedule says so.
//
// A mark is always older than what waits for it, so queues cannot wait for each other in a circle, and running a
// queue up to a mark runs at most one level of every other queue.
#include "vdev.hpp"

#include <algorithm>

namespace vdev {
namespace queues {

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

void run_to(Queue & queue, uint64_t number) {
    while (queue.done < number) {
        // Out of the queue only when it is done: what it waits for can look at this queue, but never needs it.
        Queue::Item & item = queue.items.front();
        if (item.mark.queue != nullptr) {
            run_to(*item.mark.queue, item.mark.number);
        }
        if (item.run) {
            item.run();
        }
        queue.items.pop_front();
        queue.done++;
    }
}

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
uint64_t draw(uint64_t & state) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z          = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z          = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Under a random schedule some of the queues get on with their work, by as much as chance says. Each keeps a pace of
// its own for a while: if all were equally fast, none would ever be far behind another.
void stir(Generation & generation) {
    if (generation.config.schedule.kind != Schedule::random) {
        return;
    }
    for (size_t i = 0; i < generation.queues.size(); i++) {
        const std::shared_ptr<Queue> queue = generation.queues[i].lock();
        if (queue == nullptr || queue->items.empty()) {
            continue;
        }
        if (draw(generation.random) % 64 == 0) {
            queue->pace = 1ull << draw(generation.random) % 10;
        }
        if (draw(generation.random) % queue->pace == 0) {
            run_to(*queue, queue->done + draw(generation.random) % (queue->items.size() + 1));
        }
    }
}

// The host waits until so much of the queue is done.
void wait_for(Queue & queue, uint64_t number) {
    if (queue.worker != nullptr) {
        wait_until_done(*queue.progress, number);
    } else {
        run_to(queue, number);
    }
}

// Runs what is in the queues of a device; the host waits for it.
void finish_device(Device & device) {
    for (size_t i = 0; i < device.generation->queues.size(); i++) {
        const std::shared_ptr<Queue> queue = device.generation->queues[i].lock();
        if (queue == nullptr || queue->device != &device) {
            continue;
        }
        wait_for(*queue, queue->issued);
        order::host_waits(*queue);
    }
}

} // namespace

std::shared_ptr<Queue> make(Device & device) {
    auto         queue = std::make_shared<Queue>();
    Generation & all   = *device.generation;
    const Lock   lock(all.mutex);
    queue->device = &device;
    queue->actor  = races::new_actor(device);
    queue->pace   = 1ull << draw(all.random) % 10;
    if (all.config.schedule.kind == Schedule::threads) {
        queue->progress = &all.progress.emplace_back(0);
        queue->worker   = std::make_unique<Worker>(*queue->progress);
    }
    all.queues.erase(std::remove_if(all.queues.begin(), all.queues.end(),
                                    [](const std::weak_ptr<Queue> & one) { return one.expired(); }),
                     all.queues.end());
    all.queues.push_back(queue);
    return queue;
}

void put(Queue & queue, const std::vector<ggml_backend_buffer_t> & buffers, std::function<void()> run) {
    Generation & all = *queue.device->generation;
    const Lock   lock(all.mutex);
    queue.issued++;
    for (const ggml_backend_buffer_t buffer : buffers) {
        queue.last_use[buffer] = queue.issued;
    }
    if (queue.worker != nullptr) {
        queue.worker->put(std::move(run), nullptr, 0);
        return;
    }
    queue.items.push_back({ std::move(run), {} });
    stir(all);
}

void wait(Queue & queue, const Mark & mark) {
    if (mark.queue == nullptr || mark.queue.get() == &queue) {
        return;
    }
    Generation & all = *queue.device->generation;
    const Lock   lock(all.mutex);
    if (queue.worker != nullptr) {
        queue.worker->put({}, mark.queue->progress, mark.number);
        queue.issued++;
        return;
    }
    if (mark.queue->done < mark.number) {
        queue.items.push_back({ {}, mark });
        queue.issued++;
    }
    stir(all);
}

Mark mark(const std::shared_ptr<Queue> & queue) {
    if (at_once(*queue->device)) {
        return {};
    }
    const Lock lock(queue->device->generation->mutex);
    return { queue, queue->issued };
}

void finish(const Mark & mark) {
    if (mark.queue == nullptr) {
        return;
    }
    if (mark.queue->worker != nullptr) {
        wait_for(*mark.queue, mark.number);
        return;
    }
    Generation & all = *mark.queue->device->generation;
    const Lock   lock(all.mutex);
    stir(all);
    wait_for(*mark.queue, mark.number);
}

void before_access(Device & device) {
    if (at_once(device) && !(order::watched() && device.generation->config.schedule.access_waits)) {
        return;
    }
    const Lock lock(device.generation->mutex);
    stir(*device.generation);
    if (device.generation->config.schedule.access_waits) {
        finish_device(device);
    }
}

// cudaFree waits for the device. Other devices' copies into the memory are run as well: the memory is gone then.
void before_free(Device & device, ggml_backend_buffer_t buffer) {
    if (at_once(device) && !order::watched()) {
        return;
    }
    const Lock lock(device.generation->mutex);
    finish_device(device);
    for (size_t i = 0; i < device.generation->queues.size(); i++) {
        const std::shared_ptr<Queue> queue = device.generation->queues[i].lock();
        if (queue == nullptr) {
            continue;
        }
        const auto last = queue->last_use.find(buffer);
        if (last != queue->last_use.end()) {
            wait_for(*queue, last->second);
            queue->last_use.erase(last);
        }
    }
}

} // namespace queues
} // namespace vdev
