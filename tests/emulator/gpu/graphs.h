// CUDA graphs of the emulated device. What runs on it while a graph captures is run to learn the
// shapes of the results, and noted. At the end the memory that was there before is as it was, and
// that of the results holds nothing yet. To replay is to run the noted work again, with the same
// numbers, from and into the same memory.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <atomic>

#include "memory.h"

namespace {

using at::Generator;
using c10::IValue;

// One op of torch, on the CPU twins of its arguments.
struct Node {
  c10::OperatorHandle op;
  torch::jit::Stack arguments, results;
  // Memory that was there before the capture is not the graph's: somebody else has to keep it.
  std::vector<c10::weak_intrusive_ptr<StorageImpl>> borrowed;

  static void write(const IValue& to, const IValue& from) {
    if (to.isTensor() && to.toTensor().defined()) {
      TORCH_CHECK(to.toTensor().sizes() == from.toTensor().sizes(), "the size of a result changed");
      to.toTensor().copy_(from.toTensor());
    } else if (to.isTensorList()) {
      const auto targets = to.toTensorVector(), sources = from.toTensorVector();
      for (size_t i = 0; i < targets.size(); ++i) write(targets[i], sources[i]);
    }
  }

  void run() const {
    for (const auto& storage : borrowed) {
      TORCH_CHECK(!storage.expired(),
                  "CUDA error: an illegal memory access was encountered: ", op.schema().name(),
                  " of a graph uses memory that has been freed since");
    }
    torch::jit::Stack stack = arguments;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    const auto& returns = op.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) {
      if (returns[i].alias_info() == nullptr) write(results[i], stack[i]);
    }
  }
};

struct Graph;
std::atomic<Graph*> capturing{nullptr};

struct Graph final : torch::CustomClassHolder {
  std::vector<std::optional<Node>> nodes;  // without a value: a kernel that Python launches again
  std::map<StorageImpl*, Storage> pool;    // memory made while capturing
  std::map<uintptr_t, std::string> before;
  std::vector<Generator> generators;
  std::vector<std::pair<Generator, Tensor>> drawing;  // while capturing: states to return to
  bool draws_by_default = false, invalid = false;
  std::mutex mutex;

  ~Graph() override {
    if (capturing == this) release();
  }

  void begin() {
    for (const Generator& generator : generators) keep_state(generator);
    keep_state(at::detail::getDefaultCPUGenerator());
    before = contents();
    keep_storages(&pool);
    capturing = this;
  }

  // Nothing has been computed: that is what everybody is to find. Returns whether all was allowed.
  bool end() {
    release();
    restore(before);
    before.clear();
    for (const auto& entry : pool) {
      std::memset(entry.second.mutable_data(), 0xff, entry.second.nbytes());
    }
    if (!draws_by_default) drawing.pop_back();
    for (auto& [generator, state] : drawing) generator.set_state(state);
    drawing.clear();
    return !invalid;
  }

  void register_generator(Generator generator) { generators.push_back(std::move(generator)); }

  int64_t size() const { return nodes.size(); }

  void run(int64_t first, int64_t end) const {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    for (int64_t i = first; i < end; ++i) nodes[i]->run();
  }

  void draw(const Generator& generator) {
    const auto is_it = [&](const auto& entry) { return entry.first == generator; };
    const bool registered = std::any_of(drawing.begin(), drawing.end(), is_it);
    invalid |= !registered;
    TORCH_CHECK(registered, "Attempt to increase offset for a CUDA generator not in capture mode.");
  }

  // What is drawn, and from where.
  void check_generators(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
    bool given = false;
    for (const IValue& value : arguments) {
      if (!value.isGenerator()) continue;
      draw(value.toGenerator());
      given = true;
    }
    draws_by_default |= !given && op.hasTag(at::Tag::nondeterministic_seeded);
  }

  int64_t add(std::optional<Node> node) {
    const std::lock_guard<std::mutex> lock(mutex);
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

 private:
  void keep_state(const Generator& generator) {
    drawing.emplace_back(generator, generator.get_state());
  }

  void release() {
    capturing = nullptr;
    keep_storages(nullptr);
  }
};

// For what the host must not do while a graph captures.
void refuse_while_capturing() {
  Graph* graph = capturing;
  if (graph == nullptr) return;
  graph->invalid = true;
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing");
}

}  // namespace

TORCH_LIBRARY(emulated_gpu, m) {
  m.class_<Graph>("Graph")
      .def(torch::init<>())
      .def("begin", &Graph::begin)
      .def("end", &Graph::end)
      .def("register_generator", &Graph::register_generator)
      .def("size", &Graph::size)
      .def("run", &Graph::run);
}
