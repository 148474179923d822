// Where an operator of our own is started: once in the source, by the device of its target, never by that of a
// tensor. What hangs at the target as a Recorder is told of every such call, of every communication call
// (comm/backends/recording.h) and of libtorch's products; its other operators it can see by libtorch's dispatcher.
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
#include "cuda/device.h"

namespace metroplex::cuda {

// A number that the host gave to an operator: a replay repeats it.
struct HostScalar {
  template <class T>
  HostScalar(const char* its_name, T number) : name(its_name) {
    if constexpr (std::is_floating_point_v<T>) value = static_cast<double>(number);
    else value = static_cast<int64_t>(number);
  }
  const char* name;
  std::variant<int64_t, double> value;
};

// One call of an operator. What it updates in place is among `reads` and `writes`; of all else in `writes` the old
// values do not matter. The tensors keep the memory alive that `run` works on.
struct Operation {
  std::string name;   // of the kernel (without _cuda) or the collective
  std::string group;  // of a communication call; empty for a kernel
  std::vector<at::Tensor> reads, writes;
  std::vector<HostScalar> scalars;
  std::function<void()> run;   // as often as one likes, on the same memory with the same scalars
  double flops = 0;            // of its products as they are computed, two a multiply-add; 0 where memory bounds it
  const void* work = nullptr;  // of a communication call and of the "wait" for it, the same
  std::string arguments{};     // of a kernel, all but tensors: argument_bytes
  // Instead of `run` in replays, where that one holds its memory: a call whose rank fails under way needs it until
  // the peers are done.
  std::function<void()> replay{};
  size_t scratch = 0;  // how many of the last in `writes` are room to work in: what is left there is nobody's result
};

// What it moves at least: each of its tensors once in and once out, scratch aside.
int64_t bytes_of(const Operation& operation);

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Is called instead of the operator, by the thread that issues it: calls operation.run(), once, before it returns.
  virtual void run(Operation operation) = 0;
  // What a replay shall work on instead of x, which the caller hands it: x, or a tensor on the same memory that does
  // not hold it.
  virtual at::Tensor held(const at::Tensor& x) { return x; }
  // Is told of a group that this rank speaks on and whose calls it will be told of: its global ranks, two or more.
  // Groups of equal ranks and equal purpose share a communicator.
  virtual void joins(const std::string& /*group*/, const std::string& /*purpose*/,
                     const std::vector<int>& /*ranks*/) {}
  // Runs `host`, and again at this place of every replay.
  virtual void mark(std::function<void()> host) { host(); }
  // Is told of a product of libtorch (matrix product, attention) once its caller has issued it: `run` is empty.
  virtual void issued(const Operation& /*product*/) {}
};

// What a rank computes on. A plain value: every layer and optimizer gets it through its context.
struct Target {
  at::Device device = at::kCPU;
  Recorder* recorder = nullptr;  // outlives whoever has the target
  bool meta = false;  // tensors are on the meta device: the paths of `device` are taken, nothing is computed

  bool gpu() const { return device.is_cuda(); }
  at::Device memory() const { return meta ? at::Device(at::kMeta) : device; }  // where tensors are made
};

// The tensors of one call, named where it is made; null and undefined ones do not count.
struct Operands {
  const char* name;
  at::ArrayRef<const at::Tensor*> reads, writes;
  std::initializer_list<HostScalar> scalars = {};
  double flops = 0;
  at::ArrayRef<const at::Tensor*> scratch = {};
};

void record(Recorder& recorder, const Operands& operands, std::function<void()> run, std::string arguments);
void record_issued(Recorder& recorder, const Operands& operands);

// Beside each product of libtorch that is issued for the target.
inline void issued(const Target& target, const Operands& operands) {
  if (target.recorder != nullptr) record_issued(*target.recorder, operands);
}

// Stands for the GPU form of an operator that only the CPU's paths use.
struct CpuOnly {
  template <class... Args>
  void operator()(const Args&...) const {
    MPX_ASSERT(false, "an operator of the CPU on a GPU");
  }
};

// An argument as a replay has it.
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

// The values of arguments: bytes without padding, each from a multiple of 8 on, of tensors none. So a number that the
// launch does not name as a scalar is seen where it changes. Empty where the compiler cannot clear padding.
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

// Calls on_cpu(args...), or on_gpu(args..., stream) on the current stream. A replay has copies of the arguments, so
// the two are functions, or lambdas without captures.
template <class OnCpu, class OnGpu, class... Args>
void launch(const Target& target, const Operands& operands, OnCpu on_cpu, OnGpu on_gpu, const Args&... args) {
  static_assert(
      (std::is_pointer_v<OnCpu> || std::is_empty_v<OnCpu>)&&(std::is_pointer_v<OnGpu> || std::is_empty_v<OnGpu>),
      "what a lambda captured is gone at a replay: hand it over as an argument");
  if (target.recorder == nullptr) return start(target, on_cpu, on_gpu, args...);
  record(
      *target.recorder, operands,
      [target, on_cpu, on_gpu, kept = std::tuple<Args...>(held(*target.recorder, args)...)] {
        std::apply([&](const Args&... each) { start(target, on_cpu, on_gpu, each...); }, kept);
      },
      argument_bytes(args...));
}

// How the numbers of a device come to the host: a copy of x, a tensor of target.memory(). It waits for all that was
// enqueued before, so all reads go through this function, which a Recorder sees; on the CPU too. Asserts that there
// are values (Target::meta).
at::Tensor read_on_host(const Target& target, const at::Tensor& x);

// Overwrites x, a tensor of `target`'s, with a host's tensor of its shape and type. Nobody waits.
void write_from_host(const Target& target, const at::Tensor& x, const at::Tensor& host);

}  // namespace metroplex::cuda
