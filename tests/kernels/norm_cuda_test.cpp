// The norm kernels of the GPU, alone and fused with bias, dropout and residual, against their CPU reference
// implementations over dtypes and shapes. Without a GPU the calls must report that they cannot run.
#include "kernels/twins.h"

#include <string>

#include "base/error.h"
#include "device/device.h"
#include "kernels/dropout_norm.h"
#include "support/gpu.h"

namespace metroplex::kernels::norm_cuda_test {
namespace {

template <class In, class Out>
struct Tensors {
  using T = Wide<In>;
  at::Tensor x, weight, bias, out, mean, rstd, dy, add, dx, lines;
  at::Tensor raw, added, residual, draw, counters;  // of dropout

  explicit Tensors(const NormShape& shape)
      : x(values<In>({shape.rows, shape.width}, 0.7)),
        weight(values<Out>({shape.width}, 0.2)),
        bias(shape.rms ? at::Tensor() : values<Out>({shape.width}, 0.9)),
        out(at::zeros({shape.rows, shape.width}, values<Out>({1}, 1).options())),
        mean(at::zeros({shape.rows}, wide_values<In>(1, 1).options())),
        rstd(at::zeros_like(mean)),
        dy(values<Out>({shape.rows, shape.width}, 0.3)),
        add(values<In>({shape.rows, shape.width}, 0.11)),
        dx(at::zeros_like(x)),
        lines(at::zeros({norm_lines(shape), count_norm_sums(!shape.rms, true) * shape.width}, mean.options())),
        raw(values<Out>({shape.rows, shape.width}, 0.5)),
        added(values<Out>({shape.width}, 0.4)),
        residual(values<In>({shape.rows, shape.width}, 0.6)),
        draw(at::zeros_like(raw)),
        counters(at::tensor({7, 9}, at::kLong)) {}

  void to_gpu() {
    for (at::Tensor* each :
         {&x, &weight, &bias, &out, &mean, &rstd, &dy, &add, &dx, &lines, &raw, &added, &residual, &draw, &counters})
      *each = on_gpu(*each);
  }
  NormForward<In, Out> forward() const {
    return {data<In>(x), data<Out>(weight), data<Out>(bias), data<Out>(out), data<T>(mean), data<T>(rstd)};
  }
  NormBackward<In, Out> backward(bool with_add) const {
    return {data<Out>(dy),   data<In>(x),    data<Out>(weight),
            data<T>(mean),   data<T>(rstd),  with_add ? data<In>(add) : nullptr,
            data<In>(dx),    data<T>(lines), bias.defined(),
            /*with_dx=*/true};
  }
  DropoutOperands<Out, In> sum() const { return {data<Out>(raw), data<Out>(added), data<In>(residual), data<In>(x)}; }
  DropoutNormShape shape(const NormShape& shape, double probability) const {
    const DropoutRows rows{data<int64_t>(counters), shape.rows % 2 == 0 ? 2 : 1, 5, false};
    return {{rows, shape.rows, shape.width, 0x123456789ABCDEF0ull, probability}, shape};
  }
};

// The norm's input gradient is rounded before it is added: if the two nearly cancel, the sum is off by the rounding
// of the larger term. `parts`: sizes of the terms.
template <class T>
void expect_gradient(const at::Tensor& gpu, const at::Tensor& cpu, const at::Tensor& parts, const char* what) {
  constexpr double kUnit = std::is_same_v<T, Bf16> ? 0x1p-7 : std::is_same_v<T, F16> ? 0x1p-10 : 0;
  const double slack = std::is_same_v<Wide<T>, double> ? 1e-12 : 4e-6;
  const at::Tensor error = (gpu.to(at::kCPU, at::kDouble) - cpu.to(at::kDouble)).abs() - parts * kUnit;
  EXPECT_LE(error.max().template item<double>(), slack * std::max(1.0, parts.max().template item<double>())) << what;
}

template <class In, class Out>
void expect_gradients(const Tensors<In, Out>& gpu, const Tensors<In, Out>& cpu, bool with_add) {
  const at::Tensor total = cpu.dx.to(at::kDouble), past = cpu.add.to(at::kDouble);
  const at::Tensor parts = total.abs() + (with_add ? past.abs() + (total - past).abs() : at::zeros_like(total));
  expect_gradient<In>(gpu.dx, cpu.dx, parts, "dx of norm");
  const at::Tensor dy = cpu.dy.to(at::kDouble).abs(),
                   normal = (cpu.x.to(at::kDouble) - cpu.mean.unsqueeze(1)) * cpu.rstd.unsqueeze(1);
  const auto largest_sum = [](const at::Tensor& terms) { return terms.abs().sum(0).max().template item<double>(); };
  const int64_t width = cpu.x.size(1);
  const auto gradient = [&](const at::Tensor& lines, int64_t column) {
    return lines.narrow(1, column, width).sum(0);
  };
  expect_twins<Wide<In>>(gradient(gpu.lines, 0), gradient(cpu.lines, 0), "dweight of norm", largest_sum(dy * normal));
  if (cpu.bias.defined())
    expect_twins<Wide<In>>(gradient(gpu.lines, width), gradient(cpu.lines, width), "dbias of norm", largest_sum(dy));
}

// The last lines hold the sums of the gradient that the GPU wrote.
template <class T>
void expect_sums(const at::Tensor& lines, const at::Tensor& written) {
  const int64_t width = written.size(1);
  const at::Tensor rows = written.cpu().to(at::kDouble);
  expect_twins<T>(lines.narrow(1, lines.size(1) - width, width).sum(0), rows.sum(0), "sums of dx",
                  rows.abs().sum(0).max().template item<double>());
}

template <class In, class Out>
void check_norm(const NormShape& shape, bool with_add) {
  Tensors<In, Out> cpu(shape), gpu(shape);
  gpu.to_gpu();
  norm_forward(cpu.forward(), shape);
  norm_forward_cuda(gpu.forward(), shape, device::current_stream());
  expect_twins<Out>(gpu.out, cpu.out, "norm");
  norm_backward(cpu.backward(with_add), shape);
  norm_backward_cuda(gpu.backward(with_add), shape, device::current_stream());
  expect_gradients(gpu, cpu, with_add);
  expect_sums<Wide<In>>(gpu.lines, gpu.dx);
}

// With probability 1/2 the retained values are multiplied by 2, which is exact: a fused multiply-add gives the bits
// of its two steps. So the sums of both implementations are equal.
template <class In, class Out>
void check_sum(const NormShape& norm_shape, double probability) {
  Tensors<In, Out> cpu(norm_shape), gpu(norm_shape);
  gpu.to_gpu();
  const DropoutNormShape shape = cpu.shape(norm_shape, probability), on_device = gpu.shape(norm_shape, probability);
  dropout_norm_forward(cpu.sum(), cpu.forward(), shape);
  dropout_norm_forward_cuda(gpu.sum(), gpu.forward(), on_device, device::current_stream());
  EXPECT_TRUE(at::equal(gpu.x.to(at::kCPU), cpu.x)) << "sum";
  expect_twins<Out>(gpu.out, cpu.out, "norm of the sum");
  dropout_norm_backward(cpu.backward(true), data<Out>(cpu.draw), shape);
  dropout_norm_backward_cuda(gpu.backward(true), data<Out>(gpu.draw), on_device, device::current_stream());
  expect_gradients(gpu, cpu, true);
  expect_sums<Wide<In>>(gpu.lines, gpu.draw);
  const at::Tensor mask = cpu.draw.ne(0);
  EXPECT_TRUE(at::equal(gpu.draw.to(at::kCPU).ne(0), mask)) << "mask";
  const at::Tensor drawn = gpu.dx.to(at::kCPU, at::kDouble) * mask / (1 - probability);
  expect_twins<Out>(gpu.draw, drawn, "gradient of what was dropped");
}

template <class In, class Out>
void check_pair() {
  struct Kind {
    bool rms, one_plus;
  };
  for (const auto& [rms, one_plus] : {Kind{false, false}, Kind{true, false}, Kind{true, true}}) {
    for (const auto& [rows, width] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 5}, {7, 1}, {70, 300}, {3, 4096}, {5, 12289}, {2100, 33}}) {
      const NormShape shape{.rows = rows, .width = width, .epsilon = 1e-5, .rms = rms, .one_plus = one_plus};
      SCOPED_TRACE(testing::Message() << rows << " x " << width << " rms " << rms << " one plus " << one_plus);
      check_norm<In, Out>(shape, false);
      check_norm<In, Out>(shape, true);
      check_sum<In, Out>(shape, 0);
      check_sum<In, Out>(shape, 0.5);
    }
  }
}

std::string refusal() {
  const Tensors<float, float> tensors({1, 1});
  try {
    dropout_norm_forward_cuda(tensors.sum(), tensors.forward(), tensors.shape({1, 1}, 0), nullptr);
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

TEST(NormCuda, TheGpuGetsWhatTheCpuTwinsGetAndWithoutOneTheCallSaysSo) {
  if (const char* why = expected_refusal()) {
    EXPECT_NE(refusal().find(std::string("[cuda] kernel dropout_norm_forward") + why), std::string::npos)
        << refusal();
  }
  MPX_NEED_GPU_KERNELS();
  check_pair<float, float>();
  check_pair<double, double>();
  check_pair<Bf16, Bf16>();
  check_pair<F16, F16>();
  check_pair<float, Bf16>();
  check_pair<float, F16>();
}

// 256 lines gave each of the 132 SMs of a large GPU two thread blocks of the eight that it holds.
TEST(NormLines, CoverAllRowsWithAtMost1024ThreadBlocksAndStaySmallBesideX) {
  int64_t fewer = 0;
  for (const int64_t rows : {0, 1, 8, 9, 2047, 2048, 2049, 2100, 4095, 4096, 4097, 16383, 16384, 16385, 100000}) {
    const NormShape shape{rows, 4, 1e-5, false};
    const int64_t lines = norm_lines(shape), of_line = norm_rows_per_line(shape);
    EXPECT_LE(lines, 1024);
    EXPECT_GE(lines * of_line, rows);
    EXPECT_LT((lines - 1) * of_line, std::max<int64_t>(rows, 1));
    // Per column, floats and bf16; the last line may have fewer rows.
    EXPECT_LE((lines - 1) * 2 * 4, rows * 2 / (rows < 4096 ? 2 : 4));
    EXPECT_GE(of_line, fewer) << "more rows, fewer of a line";
    fewer = of_line;
  }
  EXPECT_EQ(norm_lines({16384, 4, 1e-5, false}), 1024);
}

}  // namespace
}  // namespace metroplex::kernels::norm_cuda_test
