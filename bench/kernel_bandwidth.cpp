// kernel_bandwidth [cuda|cpu] [rows] [width] [repetitions]: memory-bound kernels on tensors larger than all caches.
// Prints required bytes over time, next to the device's copy rate in the same run, as Markdown. In bf16; the
// optimizer has an fp32 main parameter and moments.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/column_sums.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/permutation.h"
#include "device/launch_point.h"
#include "timing.h"

namespace {

using namespace metroplex;
using namespace metroplex::kernels;

template <class T>
T* raw(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

struct Bench {
  device::Target target;
  int repetitions;
  double copy_rate = 0;

  at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) const {
    return at::randn(sizes, at::kFloat).to(type).to(target.device);
  }
  // Time of one call in a series of calls; minimum of three series.
  double seconds(const std::function<void()>& work) const {
    const auto wait = [this] {
      if (target.gpu()) device::synchronize();
    };
    double best = 1e30;
    for (int row = 0; row < 4; ++row) {
      wait();
      const auto start = bench::Clock::now();
      for (int i = 0; i < repetitions; ++i) work();
      wait();
      if (row > 0) best = std::min(best, bench::seconds_since(start) / repetitions);
    }
    return best;
  }
  void line(const char* name, double bytes, const std::function<void()>& work) {
    const double time = seconds(work), rate = bytes / time / 1e9;
    if (copy_rate == 0) copy_rate = rate;
    std::printf("| %s | %.1f | %.1f | %.0f | %.2f |\n", name, bytes / 1e6, time * 1e6, rate, rate / copy_rate);
  }
};

double sum_bytes(std::initializer_list<const at::Tensor*> tensors) {
  double bytes = 0;
  for (const at::Tensor* x : tensors) bytes += static_cast<double>(x->nbytes());
  return bytes;
}

void layers(Bench& bench, int64_t rows, int64_t width) {
  const at::Tensor x = bench.random({rows, width}), out = at::empty_like(x), dx = at::empty_like(x);
  const at::Tensor weight = bench.random({width}), rstd = at::empty({rows}, weight.options().dtype(at::kFloat));
  const at::Tensor dweight = at::empty({width}, rstd.options());
  bench.line("copy", sum_bytes({&x, &out}), [&] { out.copy_(x); });
  const NormShape norm{rows, width, 1e-5, true};
  const at::Tensor lines = at::empty({norm_lines(norm) * width}, rstd.options());
  bench.line("norm_forward", sum_bytes({&x, &out}), [&] {
    device::launch(
        bench.target, {"norm_forward", {}, {}}, norm_forward<Bf16, Bf16>, norm_forward_cuda<Bf16, Bf16>,
        NormForward<Bf16, Bf16>{raw<Bf16>(x), raw<Bf16>(weight), nullptr, raw<Bf16>(out), nullptr, raw<float>(rstd)},
        norm);
  });
  bench.line("norm_backward", sum_bytes({&x, &out, &dx}), [&] {
    const NormBackward<Bf16, Bf16> of{raw<Bf16>(out),   raw<Bf16>(x), raw<Bf16>(weight), nullptr,
                                      raw<float>(rstd), nullptr,      raw<Bf16>(dx),     raw<float>(lines)};
    device::launch(bench.target, {"norm_backward", {}, {}}, norm_backward<Bf16, Bf16>, norm_backward_cuda<Bf16, Bf16>,
                   of, norm);
    device::launch(bench.target, {"sum_lines", {}, {}}, sum_lines<float>, sum_lines_cuda<float>,
                   LineSums<float>{raw<float>(lines), norm_lines(norm), width, width, raw<float>(dweight)});
  });
  const at::Tensor sums = at::zeros({rows, width}, rstd.options());
  bench.line("add_elements", sum_bytes({&x, &sums, &sums}), [&] {
    device::launch(bench.target, {"add_elements", {}, {}}, add_elements<Bf16>, add_elements_cuda<Bf16>,
                   raw<float>(sums), static_cast<const Bf16*>(raw<Bf16>(x)), x.numel(), true);
  });
  const ColumnSumsShape columns{rows, width, width};
  const at::Tensor of_columns = at::empty({column_lines<Bf16>(columns), width}, rstd.options());
  bench.line("column_sums", sum_bytes({&x}), [&] {
    device::launch(
        bench.target, {"column_sums", {}, {}},
        [](float* sums, const Bf16* of, float*, const ColumnSumsShape& shape) { column_sums(sums, of, shape); },
        column_sums_cuda<Bf16>, raw<float>(dweight), static_cast<const Bf16*>(raw<Bf16>(x)), raw<float>(of_columns),
        columns);
  });
  const at::Tensor wide = bench.random({rows, 2 * width});
  const ActivationShape swiglu{rows, width, Activation::silu, true};
  bench.line("activation_forward", sum_bytes({&wide, &out}), [&] {
    device::launch(bench.target, {"activation_forward", {}, {}}, activation_forward<Bf16>,
                   activation_forward_cuda<Bf16>, raw<Bf16>(wide), static_cast<const Bf16*>(nullptr), raw<Bf16>(out),
                   swiglu);
  });
}

void rows_of_experts(Bench& bench, int64_t tokens, int64_t width) {
  constexpr int64_t kTop = 2, kExperts = 8;
  const int64_t all = tokens * kTop;
  const at::Tensor experts = at::randint(0, kExperts, {all}, at::kLong).to(bench.target.device);
  const at::Tensor rows = at::empty_like(experts), source = at::empty_like(experts),
                   counts = at::empty({kExperts}, experts.options());
  const PermutationShape shape{all, all, 0, kExperts, kExperts};
  const PermutationPlan plan{raw<int64_t>(rows), raw<int64_t>(source), raw<int64_t>(counts)};
  bench.line("plan_permutation", sum_bytes({&experts, &rows, &source}), [&] {
    device::launch(bench.target, {"plan_permutation", {}, {}}, plan_permutation, plan_permutation_cuda,
                   static_cast<const int64_t*>(raw<int64_t>(experts)), plan, shape);
  });
  const at::Tensor x = bench.random({tokens, width}), y = at::empty({all, width}, x.options());
  bench.line("permute_rows", 2 * sum_bytes({&y}), [&] {
    device::launch(bench.target, {"permute_rows", {}, {}}, permute_rows<Bf16>, permute_rows_cuda<Bf16>,
                   static_cast<const Bf16*>(raw<Bf16>(x)), static_cast<const int64_t*>(raw<int64_t>(source)),
                   raw<Bf16>(y), RowsShape{all, width, kTop}, RowNumbers());
  });
  bench.line("sum_rows", sum_bytes({&x, &y}), [&] {
    device::launch(bench.target, {"sum_rows", {}, {}}, sum_rows<Bf16>, sum_rows_cuda<Bf16>,
                   static_cast<const Bf16*>(raw<Bf16>(y)), static_cast<const int64_t*>(raw<int64_t>(rows)),
                   raw<Bf16>(x), SumShape{tokens, kTop, width});
  });
}

void optimizer(Bench& bench, int64_t n) {
  const at::Tensor grad = bench.random({n}, at::kFloat), main = bench.random({n}, at::kFloat),
                   first = at::zeros_like(main), second = at::zeros_like(main),
                   param = at::empty({n}, main.options().dtype(at::kBFloat16));
  const StepValues values{.updates = 1, .grad_factor = 1};
  const GroupRates rates = group_rates(1e-4, 0.01, 0.9, 0.999, 1);
  const auto on_device = [&](const void* data, size_t bytes) {
    const at::Tensor host = at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)}, at::kByte);
    return host.clone().to(bench.target.device);
  };
  const at::Tensor at_values = on_device(&values, sizeof values), at_rates = on_device(&rates, sizeof rates);
  OptimizerRange range;
  range.n = n;
  range.grad = grad.const_data_ptr();
  range.main = main.mutable_data_ptr();
  range.param = param.mutable_data_ptr();
  range.first.data = first.mutable_data_ptr();
  range.second.data = second.mutable_data_ptr();
  bench.line("adam_step", sum_bytes({&grad, &main, &main, &first, &first, &second, &second, &param}), [&] {
    const StepValues* const step = raw<StepValues>(at_values);
    const std::vector<RatedRange> ranges{{range, raw<GroupRates>(at_rates)}};
    device::launch(
        bench.target, {"adam_step", {}, {}},
        [](const std::vector<RatedRange>& all, const AdamHyper& hyper, const StepValues* its) {
          for (const RatedRange& one : all) adam_step(one.range, hyper, {its, one.rates});
        },
        adam_step_cuda, ranges, AdamHyper{}, step);
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const std::string device = argc > 1 ? argv[1] : "cuda";
  const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 65536, width = argc > 3 ? std::atoll(argv[3]) : 4096;
  if (device == "cuda" && device::device_count() == 0) {
    std::fprintf(stderr, "kernel_bandwidth: there is no GPU; give cpu\n");
    return 2;
  }
  Bench bench{{at::Device(device == "cuda" ? at::kCUDA : at::kCPU)}, argc > 4 ? std::atoi(argv[4]) : 20};
  std::printf("| kernel | MB | us | GB/s | of the copy |\n| --- | --- | --- | --- | --- |\n");
  layers(bench, rows, width);
  rows_of_experts(bench, rows / 2, width);
  optimizer(bench, rows * width / 2);
  return 0;
}
