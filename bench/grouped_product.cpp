// grouped_product [repetitions] [in] [out] [experts] [rows]: the GEMMs of a layer's experts in one call. Compares
// with one large GEMM of the same work, a loop of at::mm, and at::_grouped_mm, alternating in one process. Prints
// Markdown: medians in GFLOP/s (forward, input gradient and weight gradient together), ratios, and the weights'
// bandwidth next to that of a plain read.
// grouped_product cuda [experts] [rows] [in] [out]: on a GPU, our kernel in bf16 and fp16, and at::_grouped_mm in
// bf16, in TFLOP/s. All experts have the same share of `rows`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/compiled.h"
#include "moe/grouped_library.h"
#include "moe/grouped_product.h"
#include "nn/matmul.h"
#include "timing.h"

namespace {

using namespace metroplex;

struct Sizes {
  int64_t repetitions = 9, in = 1024, out = 1024;
  int64_t experts = 0, rows = 0;  // 0: all cases of the table
};

// CPU time for one thread, which excludes other load on the machine; wall time for several threads.
double seconds(const std::function<void()>& work) {
  const auto now = [clock = at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC] {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// Equal rows, or rows in proportion to 1 / n (Zipf) with the same sum.
std::vector<int64_t> row_counts(int64_t experts, int64_t mean, bool skewed) {
  std::vector<int64_t> rows(static_cast<size_t>(experts), mean);
  if (!skewed) return rows;
  double sum = 0;
  for (int64_t e = 1; e <= experts; ++e) sum += 1.0 / static_cast<double>(e);
  int64_t left = experts * mean;
  for (int64_t e = experts; e > 1; --e) {
    const double share = static_cast<double>(experts * mean) / (static_cast<double>(e) * sum);
    left -= rows[static_cast<size_t>(e - 1)] = static_cast<int64_t>(share);
  }
  rows[0] = left;
  return rows;
}

constexpr int kOwnTiles = 80;  // a compute capability for which our kernel is selected

class Case {
 public:
  Case(const Sizes& sizes, const std::vector<int64_t>& rows, at::ScalarType type, const device::Target& target = {})
      : rows_(rows), experts_(static_cast<int64_t>(rows.size())), product_(target, experts_, kOwnTiles) {
    for (const int64_t n : rows) total_ += n;
    const at::TensorOptions there = at::TensorOptions().device(target.device);
    x_ = at::randn({total_, sizes.in}, there).to(type);
    dy_ = at::randn({total_, sizes.out}, there).to(type);
    weight_ = at::randn({experts_, sizes.out, sizes.in}, there).to(type);
    gradient_ = at::zeros({experts_, sizes.out, sizes.in}, there);
    counts_ = at::tensor(rows, at::kLong).to(target.device);
    offsets_ = counts_.cumsum(0).to(at::kInt);
    flops_ = 2.0 * static_cast<double>(total_ * sizes.in * sizes.out);
  }

  double flops() const { return flops_; }
  double weight_bytes() const { return static_cast<double>(weight_.nbytes()); }
  std::vector<std::function<void()>> ours() const {
    using kernels::GroupedOp;
    return {[this] { product_.run(GroupedOp::forward, x_, weight_, at::empty_like(dy_), counts_); },
            [this] { product_.run(GroupedOp::input_gradient, dy_, weight_, at::empty_like(x_), counts_); },
            [this] { product_.run(GroupedOp::weight_gradient, dy_, x_, gradient_, counts_); }};
  }
  // All rows times one expert's weight.
  std::vector<std::function<void()>> large() const {
    return {[this] { nn::linear_product({}, x_, weight_[0].t()); },
            [this] { nn::linear_product({}, dy_, weight_[0]); },
            [this] {
              at::Tensor gradient = gradient_[0];
              nn::put_linear_weight_gradient({}, gradient, dy_, x_, true);
            }};
  }
  std::vector<std::function<void()>> loop() const {
    return {[this] { each([&](int64_t e, int64_t at, int64_t n) { at::mm(x_.narrow(0, at, n), weight_[e].t()); }); },
            [this] { each([&](int64_t e, int64_t at, int64_t n) { at::mm(dy_.narrow(0, at, n), weight_[e]); }); },
            [this] {
              each([&](int64_t e, int64_t at, int64_t n) {
                gradient_[e].add_(at::mm(dy_.narrow(0, at, n).t(), x_.narrow(0, at, n)));
              });
            }};
  }
  std::vector<std::function<void()>> torchs() const {
    return {[this] { at::_grouped_mm(x_, weight_.transpose(1, 2), offsets_); },
            [this] { at::_grouped_mm(dy_, weight_, offsets_); },
            [this] { gradient_.add_(at::_grouped_mm(dy_.t(), x_, offsets_)); }};
  }
  // The same with half of the weights as replicas, in another tensor.
  std::vector<std::function<void()>> joined() const {
    const int64_t home = experts_ / 2;
    const auto all = [this, replicas = weight_.narrow(0, home, experts_ - home).clone(), home] {
      return at::cat({weight_.narrow(0, 0, home), replicas});
    };
    return {[this, all] { at::_grouped_mm(x_, all().transpose(1, 2), offsets_); },
            [this, all] { at::_grouped_mm(dy_, all(), offsets_); }, torchs()[2]};
  }
  // Reads every weight once, with all threads.
  void read() const {
    const auto* data = static_cast<const uint64_t*>(weight_.const_data_ptr());
    const int64_t words = static_cast<int64_t>(weight_.nbytes() / 8);
    at::parallel_for(0, words, 1 << 16, [&](int64_t begin, int64_t end) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += data[i];
      if (sum == 1) std::printf(" ");
    });
  }

 private:
  template <class Body>
  void each(const Body& body) const {
    int64_t at = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      const int64_t n = rows_[static_cast<size_t>(e)];
      if (n > 0) body(e, at, n);
      at += n;
    }
  }

  std::vector<int64_t> rows_;
  int64_t experts_, total_ = 0;
  moe::GroupedProduct product_;
  at::Tensor x_, dy_, weight_, gradient_, counts_, offsets_;
  double flops_ = 0;
};

std::vector<double> take_turns(int64_t repetitions, const std::vector<std::function<void()>>& works) {
  std::vector<std::vector<double>> times(works.size());
  for (int64_t i = 0; i < repetitions + 1; ++i) {
    for (size_t w = 0; w < works.size(); ++w) {
      const double time = seconds(works[w]);
      if (i > 0) times[w].push_back(time);
    }
  }
  std::vector<double> medians;
  for (const auto& of : times) medians.push_back(bench::median(of));
  return medians;
}

void measure(const Sizes& sizes, int64_t experts, int64_t mean, bool skewed, at::ScalarType type) {
  static const char* const kOps[] = {"forward", "input gradient", "weight gradient"};
  const Case c(sizes, row_counts(experts, mean, skewed), type);
  const auto ours = c.ours(), large = c.large(), loop = c.loop(), torchs = c.torchs();
  for (size_t op = 0; op < 3; ++op) {
    const std::vector<double> t =
        take_turns(sizes.repetitions, {ours[op], large[op], loop[op], torchs[op], [&] { c.read(); }});
    const double bytes =
        c.weight_bytes() * (op == 2 ? 8.0 / (type == at::kFloat ? 4 : 2) : 1);  // gradients: fp32, read and written
    std::printf("| %s | %ld | %ld%s | %s | %.0f | %.2f | %.2f | %.2f | %.1f | %.1f |\n",
                type == at::kFloat ? "fp32" : "bf16", experts, mean, skewed ? ", skewed" : "", kOps[op],
                c.flops() / t[0] / 1e9, t[1] / t[0], t[2] / t[0], t[3] / t[0], bytes / t[0] / 1e9,
                c.weight_bytes() / t[4] / 1e9);
    std::fflush(stdout);
  }
}

// Median of 20 calls after three warm-up calls.
double gpu_seconds(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = -3; i < 20; ++i) {
    device::synchronize();
    const auto start = bench::Clock::now();
    work();
    device::synchronize();
    if (i >= 0) times.push_back(bench::seconds_since(start));
  }
  return bench::median(times);
}

void print_rates(const char* type, const char* by, double flops, const std::vector<std::function<void()>>& works) {
  std::printf("| %s | %s |", type, by);
  for (const auto& work : works) std::printf(" %.1f |", flops / gpu_seconds(work) / 1e12);
  std::printf("\n");
  std::fflush(stdout);
}

int on_gpu(int argc, char** argv) {
  const int capability = device::compute_capability();
  if (device::device_count() == 0 || !kernels::compiled_for(capability)) {
    std::fprintf(
        stderr, "grouped_product: %s; without the word cuda it measures the CPU\n",
        device::device_count() == 0 ? "there is no GPU" : "this build has no kernels for the GPU that is there");
    return 2;
  }
  Sizes sizes{20, 2048, 14336, 8, 8192};
  int64_t* const slots[] = {&sizes.experts, &sizes.rows, &sizes.in, &sizes.out};
  for (int i = 2; i < argc && i < 6; ++i) *slots[i - 2] = std::atoll(argv[i]);
  const device::Target target{at::Device(at::kCUDA)};
  const int64_t mean = sizes.rows / sizes.experts;
  std::printf(
      "sm_%d; %ld experts of %ld rows, weights [%ld, %ld]; TFLOP/s\n\n"
      "| type | by | forward | input gradient | weight gradient |\n| --- | --- | --- | --- | --- |\n",
      capability, sizes.experts, mean, sizes.out, sizes.in);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const Case c(sizes, row_counts(sizes.experts, mean, false), type, target);
    print_rates(type == at::kHalf ? "fp16" : "bf16", "own tiles", c.flops(), c.ours());
    if (moe::library_multiplies({true, capability, type, sizes.in, sizes.out})) {
      print_rates("bf16", "_grouped_mm", c.flops(), c.torchs());
      print_rates("bf16", "the same, replicas copied next to local experts", c.flops(), c.joined());
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  if (argc > 1 && std::string(argv[1]) == "cuda") return on_gpu(argc, argv);
  Sizes sizes;
  int64_t* const slots[] = {&sizes.repetitions, &sizes.in, &sizes.out, &sizes.experts, &sizes.rows};
  for (int i = 1; i < argc && i <= 5; ++i) *slots[i - 1] = std::atoll(argv[i]);
  at::manual_seed(1);
  std::printf("fp32: %s; bf16: %s; %d threads; weights [%ld, %ld]\n\n",
              moe::product_name({.type = at::kFloat}).c_str(), moe::product_name({.type = at::kBFloat16}).c_str(),
              at::get_num_threads(), sizes.out, sizes.in);
  std::printf(
      "| type | experts | rows an expert | product | GFLOP/s | of one large | of a loop of mm | of _grouped_mm | "
      "weights GB/s | plain read GB/s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t experts : {8, 64, 256}) {
      for (const int64_t rows : {16, 64, 128, 512}) {
        if (experts * rows > 64 * 512 || (sizes.experts > 0 && experts != sizes.experts) ||
            (sizes.rows > 0 && rows != sizes.rows))
          continue;
        for (const bool skewed : {false, true}) measure(sizes, experts, rows, skewed, type);
      }
    }
  }
  return 0;
}
