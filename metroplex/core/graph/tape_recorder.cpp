#include "graph/tape_recorder.h"

#include <ATen/ops/item.h>

#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "graph/library_call.h"

namespace metroplex::graph {

struct TapeRecorder::Recording {
  Recording(TapeRecorder& recorder, std::shared_ptr<TapePool> its_pool, bool is_strict)
      : pool(std::move(its_pool)), strict(is_strict), hooks(&recorder, pool) {}

  // Replaces the tape's tensors by weak aliases and registers their external memory.
  void own(std::vector<at::Tensor>& tensors) {
    for (at::Tensor& x : tensors) {
      note(x);
      x = weak_alias(x);
    }
  }
  void note(const at::Tensor& x) {
    c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
    if (storage->nbytes() == 0 || pool->holds(storage->data()) || !known.insert(storage).second) return;
    const auto begin = reinterpret_cast<uintptr_t>(storage->data());
    tape.externals.push_back(
        {{begin, begin + storage->nbytes()}, x.storage().getWeakStorageImpl(), tape.operations.size()});
  }
  int64_t allocation(const at::Tensor& x) const { return pool->allocation_at(x.storage().data()); }
  // True for a number that libtorch's C++ wraps in a tensor without a dispatcher call, as in x * 2.
  bool host_made(const at::Tensor& x) const {
    if (!x.defined() || x.numel() != 1) return false;
    if (x.unsafeGetTensorImpl()->is_wrapped_number()) return true;
    return allocation(x) >= 0 && !pool->written(x.storage().data());
  }

  Tape tape;
  std::shared_ptr<TapePool> pool;
  bool strict;
  std::unordered_set<c10::StorageImpl*> known;  // registered externals
  std::unordered_set<const void*> works;        // calls started in this recording
  TapeHooks hooks;
};

TapeRecorder::TapeRecorder() = default;
TapeRecorder::~TapeRecorder() = default;

void TapeRecorder::begin(std::shared_ptr<TapePool> pool, bool strict) {
  MPX_ASSERT(!recording_, "a recording begins inside another one");
  recording_ = std::make_unique<Recording>(*this, std::move(pool), strict);
}

Tape TapeRecorder::end() {
  MPX_ASSERT(recording_, "a recording ends that has not begun");
  Tape tape = std::move(recording_->tape);
  recording_.reset();
  return tape;
}

void TapeRecorder::abandon() noexcept { recording_.reset(); }

at::Tensor TapeRecorder::held(const at::Tensor& x) { return recording_ && x.defined() ? weak_alias(x) : x; }

void TapeRecorder::mark(std::function<void()> host) {
  host();
  if (!recording_) return;
  TapeOperation operation;
  operation.name = "mark";
  operation.place = place_;
  operation.run = std::move(host);
  add(std::move(operation));
}

void TapeRecorder::add(TapeOperation operation) {
  Recording& recording = *recording_;
  for (const at::Tensor& x : operation.writes) recording.pool->mark_written(x.storage().data());
  recording.own(operation.reads);
  recording.own(operation.writes);
  recording.tape.operations.push_back(std::move(operation));
}

namespace {

[[noreturn]] void refuse(const TapeOperation& operation) {
  base::throw_error("cuda graph",
                    base::concat(operation.name, operation.place.empty() ? "" : " of " + operation.place,
                                 " cannot be captured: ", operation.unfit,
                                 "; leave it out of train.cuda_graph_modules, or set "
                                 "train.cuda_graph_impl: none"));
}

}  // namespace

void TapeRecorder::run(device::Operation operation) {
  if (!recording_) return operation.run();
  TapeOperation entry{std::move(operation.name),
                      std::move(operation.group),
                      place_,
                      std::move(operation.reads),
                      std::move(operation.writes),
                      {},
                      operation.work,
                      {},
                      {},
                      std::move(operation.arguments)};
  for (const device::HostScalar& scalar : operation.scalars) {
    std::visit([&](auto value) { entry.scalars.push_back({scalar.name, value}); }, scalar.value);
  }
  if (entry.name == "read_on_host") entry.unfit = "the host reads values of the device";
  if (entry.name != "wait") {
    recording_->works.insert(entry.work);
  } else if (!recording_->works.contains(entry.work)) {
    entry.unfit = "it waits for a call on " + entry.group + " that began before the capture";
  }
  if (!entry.unfit.empty() && recording_->strict) refuse(entry);
  if (watch_ != nullptr) watch_->before(entry);
  {
    // A backend allocates when its peers arrive. That memory must not come from the pool, because that would shift
    // later addresses.
    std::optional<TapeHooks> outside;
    if (!entry.group.empty()) outside.emplace(nullptr, nullptr);
    unseen(operation.run);
  }
  if (watch_ != nullptr) watch_->after(entry);
  entry.run = std::move(operation.replay ? operation.replay : operation.run);
  add(std::move(entry));
}

// Holds the arguments only until the operator has run.
void TapeRecorder::call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  LibraryCall call{op, {stack.end() - static_cast<int64_t>(count), stack.end()}, {}};
  std::vector<TapeScalar> constants;
  const bool reads = !makes_views(op);
  for (size_t i = 0; reads && i < count; ++i) {
    c10::IValue& argument = call.arguments[i];
    if (!argument.isTensor() || !reads_argument(op, i) || !recording_->host_made(argument.toTensor())) continue;
    unseen([&] {
      const TapeHooks outside(nullptr, nullptr);
      const at::Tensor& x = argument.toTensor();
      const bool wrapped = x.unsafeGetTensorImpl()->is_wrapped_number();
      const at::Scalar value = x.item();
      constants.push_back({"constant", value.isFloatingPoint()
                                           ? std::variant<int64_t, double, std::string>(value.toDouble())
                                           : value.toLong()});
      at::Tensor kept = x.detach().clone();
      if (wrapped) kept.unsafeGetTensorImpl()->set_wrapped_number(true);
      argument = kept;
      recording_->tape.constants.push_back(kept);
    });
  }
  TapeOperation before;
  before.name = name_of(op);
  before.place = place_;
  before.unfit = unfit_for_graph(op);
  if (!before.unfit.empty() && recording_->strict) refuse(before);
  if (watch_ != nullptr) watch_->before(before);
  run_below(op, keys, stack);
  if (watch_ != nullptr) watch_->after(before);
  const auto returned = static_cast<int64_t>(op.schema().returns().size());
  call.results.assign(stack.end() - returned, stack.end());
  if (before.unfit.empty() && computes_nothing(call)) return;
  TapeOperation operation = make_operation(call);
  operation.place = place_;
  operation.scalars.insert(operation.scalars.end(), constants.begin(), constants.end());
  operation.run = repeated(call);
  add(std::move(operation));
}

}  // namespace metroplex::graph
