// Launches our own operators: every operator has one launch site, which selects the CPU or GPU version by the device
// of its target, never by a tensor's device. The target's Recorder receives every such call, every communication call
// (comm/backends/recording.h) and libtorch's products. It can observe libtorch's other operators through the
// dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace metroplex::device {

// A host number passed to an operator; a replay uses the same value.
struct HostScalar {
  template <class T>
  HostScalar(const char* its_name, T number) : name(its_name) {
    if constexpr (std::is_floating_point_v<T>) value = static_cast<double>(number);
    else value = static_cast<int64_t>(number);
  }
  const char* name;
  std::variant<int64_t, double> value;
};

// One call of an operator. Tensors updated in place are in both `reads` and `writes`; other tensors in `writes` are
// overwritten. The tensors keep alive the memory that `run` uses.
struct Operation {
  std::string name;   // name of the kernel (without _cuda) or collective
  std::string group;  // group of a communication call; empty for a kernel
  std::vector<at::Tensor> reads, writes;
  std::vector<HostScalar> scalars;
  std::function<void()> run;   // may run any number of times, on the same memory with the same scalars
  double flops = 0;            // product FLOPs as computed, two per multiply-add; 0 if memory-bound
  const void* work = nullptr;  // identifies a communication call and its "wait"
  std::string arguments{};     // argument_bytes of a kernel's arguments except tensors
  // Used instead of `run` in replays, if `run` owns its memory. A communication call of a failing rank must keep its
  // memory until the peers are done.
  std::function<void()> replay{};
  size_t scratch = 0;  // number of trailing tensors in `writes` that are scratch and have no result
};

// Minimum memory traffic in bytes: each tensor of `reads` once and each of `writes` once, without scratch.
int64_t bytes_of(const Operation& operation);

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Receives the operator instead of launching it, in the thread that issues it. Must call operation.run() once
  // before returning.
  virtual void run(Operation operation) = 0;
  // Returns the tensor that a replay must use instead of x: x, or an alias of its memory that does not own it.
  virtual at::Tensor held(const at::Tensor& x) { return x; }
  // Announces a group of two or more ranks that this rank is a member of, with its global ranks, before its first
  // call. Groups with equal ranks and purpose share a communicator.
  virtual void joins(const std::string& /*group*/, const std::string& /*purpose*/,
                     const std::vector<int>& /*ranks*/) {}
  // Runs `host` now and at the same position of every replay.
  virtual void mark(std::function<void()> host) { host(); }
  // Reports a product of libtorch (matrix product, attention) after the caller has issued it; `run` is empty.
  virtual void issued(const Operation& /*product*/) {}
};

// The device that a rank computes on. A plain value, passed to every layer and optimizer through its context.
struct Target {
  at::Device device = at::kCPU;
  Recorder* recorder = nullptr;  // must outlive all copies of the target
  bool meta = false;  // tensors are on the meta device: code takes the paths of `device`, but nothing is computed
  int meta_capability = 0;  // of a GPU that need not exist, 90 for sm_90; 0: that of this process

  bool gpu() const { return device.is_cuda(); }
  int capability() const {  // 0: no GPU, or unknown
    return !gpu() ? 0 : meta_capability > 0 ? meta_capability : compute_capability();
  }
  at::Device memory() const { return meta ? at::Device(at::kMeta) : device; }  // device of new tensors
};

// Tensors of one call. Null pointers and undefined tensors are skipped.
struct Operands {
  const char* name;
  at::ArrayRef<const at::Tensor*> reads, writes;
  std::initializer_list<HostScalar> scalars = {};
  double flops = 0;
  at::ArrayRef<const at::Tensor*> scratch = {};
};

void record(Recorder& recorder, const Operands& operands, std::function<void()> run, std::string arguments);
void record_issued(Recorder& recorder, const Operands& operands);

// Reports a libtorch product; call it for each product issued for the target.
inline void issued(const Target& target, const Operands& operands) {
  if (target.recorder != nullptr) record_issued(*target.recorder, operands);
}

// Placeholder GPU version of an operator that only CPU paths use.
struct CpuOnly {
  template <class... Args>
  void operator()(const Args&...) const {
    MPX_ASSERT(false, "an operator of the CPU on a GPU");
  }
};

// Returns the argument that a replay uses.
template <class Arg>
Arg held(Recorder& recorder, const Arg& argument) {
  if constexpr (std::is_same_v<Arg, at::Tensor>) {
    return recorder.held(argument);
  } else if constexpr (std::is_same_v<Arg, std::vector<at::Tensor>>) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& x : argument) all.push_back(recorder.held(x));
    return all;
  } else {
    return argument;
  }
}

// Bytes of the arguments' values without padding, each aligned to 8 bytes; tensors are skipped. They detect
// changed numbers that the launch does not list as scalars. Empty if the compiler cannot clear padding.
template <class... Args>
std::string argument_bytes(const Args&... args) {
  std::string all;
#if __has_builtin(__builtin_clear_padding)
  const auto add = [&all](auto copy) {
    if constexpr (std::is_trivially_copyable_v<decltype(copy)>) {
      __builtin_clear_padding(&copy);
      all.append(reinterpret_cast<const char*>(&copy), sizeof copy);
      all.resize((all.size() + 7) / 8 * 8);
    }
  };
  (add(args), ...);
#endif
  return all;
}

template <class OnCpu, class OnGpu, class... Args>
void start(const Target& target, OnCpu on_cpu, OnGpu on_gpu, const Args&... args) {
  if (target.meta) return;
  if (target.gpu()) on_gpu(args..., current_stream());
  else on_cpu(args...);
}

// Calls on_cpu(args...), or on_gpu(args..., stream) on the current stream. A replay uses copies of the arguments, so
// both must be functions or lambdas without captures.
template <class OnCpu, class OnGpu, class... Args>
void launch(const Target& target, const Operands& operands, OnCpu on_cpu, OnGpu on_gpu, const Args&... args) {
  static_assert(
      (std::is_pointer_v<OnCpu> || std::is_empty_v<OnCpu>)&&(std::is_pointer_v<OnGpu> || std::is_empty_v<OnGpu>),
      "values that a lambda captured are freed before a replay: pass them as arguments");
  if (target.recorder == nullptr) return start(target, on_cpu, on_gpu, args...);
  record(
      *target.recorder, operands,
      [target, on_cpu, on_gpu, kept = std::tuple<Args...>(held(*target.recorder, args)...)] {
        std::apply([&](const Args&... each) { start(target, on_cpu, on_gpu, each...); }, kept);
      },
      argument_bytes(args...));
}

// Copies x, a tensor of target.memory(), to the host, after waiting for all enqueued work. All reads of device values
// use this function, also on the CPU, so that a Recorder records them. Asserts that values exist (not
// Target::meta).
at::Tensor read_on_host(const Target& target, const at::Tensor& x);

// Overwrites x, a tensor of `target`, with a host tensor of the same shape and type. Does not block the host.
void write_from_host(const Target& target, const at::Tensor& x, const at::Tensor& host);

}  // namespace metroplex::device
