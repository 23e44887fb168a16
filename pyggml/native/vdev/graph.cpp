// Copies of graphs: callers change their tensors as soon as a call returns.
#include "vdev.hpp"

#include <algorithm>

namespace vdev {

// What is no node is a leaf of the copy: its own sources are not needed, and may be gone when the copy is computed.
ggml_tensor * GraphCopy::add(const ggml_tensor * tensor) {
    if (tensor == nullptr) {
        return nullptr;
    }
    const auto known = copies_.find(tensor);
    if (known != copies_.end()) {
        return known->second;
    }
    tensors_.push_back(*tensor);
    ggml_tensor * copy = &tensors_.back();
    copies_[tensor]    = copy;
    for (ggml_tensor *& src : copy->src) {
        src = nullptr;
    }
    copy->view_src                     = add(tensor->view_src);
    const ggml_backend_buffer_t buffer = buffer_of(tensor);
    if (buffer != nullptr && std::find(buffers.begin(), buffers.end(), buffer) == buffers.end()) {
        buffers.push_back(buffer);
    }
    return copy;
}

GraphCopy::GraphCopy(const ggml_cgraph & of) {
    for (int i = 0; i < of.n_nodes; i++) {
        nodes_.push_back(add(of.nodes[i]));
    }
    for (int i = 0; i < of.n_nodes; i++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            nodes_[i]->src[s] = add(of.nodes[i]->src[s]);
        }
    }
    // How often a tensor is used decides what the CPU backend fuses, so the copy must know it too.
    const size_t size = 2 * copies_.size() + 1;
    keys_.resize(size);
    used_.resize(ggml_bitset_size(size));
    use_counts_.resize(size);
    graph.visited_hash_set = { size, used_.data(), keys_.data() };
    for (const auto & [tensor, copy] : copies_) {
        const size_t at = of.visited_hash_set.size == 0 ? GGML_HASHSET_FULL :
                                                          ggml_hash_find(&of.visited_hash_set, tensor);
        if (at != GGML_HASHSET_FULL && ggml_bitset_get(of.visited_hash_set.used, at)) {
            use_counts_[ggml_hash_insert(&graph.visited_hash_set, copy)] = of.use_counts[at];
        }
    }
    graph.size       = of.n_nodes;
    graph.n_nodes    = of.n_nodes;
    graph.nodes      = nodes_.data();
    graph.use_counts = use_counts_.data();
    graph.order      = of.order;
}

} // namespace vdev
