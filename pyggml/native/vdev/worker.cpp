// The thread of a queue, under the schedule `threads`.
//
// The only things that order threads here are those that order the work: what is put in comes before what the thread does
// with it (the semaphore, and the pointer to the next node), and what it has done before what waits for that (Progress).
#include "vdev.hpp"

#include <sched.h>
#include <unistd.h>

#include <cerrno>

namespace vdev {

// A list with one reader and one writer. The first node has been read already.
struct Worker::Node {
    std::function<void()> run; // empty: only waits
    const Progress *      other  = nullptr;
    uint64_t              number = 0;
    bool                  last   = false; // the thread ends
    std::atomic<Node *>   next{ nullptr };
};

Worker::Worker(Progress & done) : done_(done), last_(new Node) {
    sem_init(&ready_, 0, 0);
    thread_ = std::thread(&Worker::work, this, last_);
}

Worker::~Worker() {
    Node * node = new Node;
    node->last  = true;
    append(node);
    thread_.join();
    sem_destroy(&ready_);
}

void Worker::put(std::function<void()> run, const Progress * other, uint64_t number) {
    Node * node  = new Node;
    node->run    = std::move(run);
    node->other  = other;
    node->number = number;
    append(node);
}

void Worker::append(Node * node) {
    last_->next.store(node, std::memory_order_release);
    last_ = node;
    sem_post(&ready_);
}

void Worker::work(Node * node) {
    for (uint64_t number = 1;; number++) {
        while (sem_wait(&ready_) != 0 && errno == EINTR) {
        }
        Node * next = node->next.load(std::memory_order_acquire);
        delete node;
        node = next;
        if (node->last) {
            delete node;
            return;
        }
        if (node->other != nullptr) {
            wait_until_done(*node->other, node->number);
        }
        if (node->run) {
            node->run();
            node->run = nullptr; // what it holds is gone before anybody knows that it is done
        }
        done_.store(number, std::memory_order_release);
    }
}

// A condition variable would need a lock, and a lock orders more than it should.
void wait_until_done(const Progress & done, uint64_t number) {
    for (int turn = 0; done.load(std::memory_order_acquire) < number; turn++) {
        if (turn < 100) {
            sched_yield();
        } else {
            usleep(50);
        }
    }
}

} // namespace vdev
