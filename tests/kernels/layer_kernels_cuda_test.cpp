// The layer kernels of the GPU (activation, sums of columns and of half types, rope, cross entropy; norm has its own
// file) against their CPU reference implementations over dtypes and shapes. Without a GPU the calls must report that
// they cannot run.
#include "kernels/twins.h"

#include <string>

#include "base/error.h"
#include "device/device.h"
#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/heads.h"
#include "kernels/rope.h"
#include "support/gpu.h"

namespace metroplex::kernels::layer_kernels_cuda_test {
namespace {

template <class T>
void check_activation(const ActivationShape& shape) {
  const int64_t width = shape.gated ? 2 * shape.width : shape.width;
  const at::Tensor x = values<T>({shape.rows, width}, 0.7), dy = values<T>({shape.rows, shape.width}, 0.3),
                   bias = values<T>({width}, 0.2);
  const at::Tensor gx = on_gpu(x), gdy = on_gpu(dy), gbias = on_gpu(bias), out = at::empty_like(dy),
                   dx = at::empty_like(x);
  const at::Tensor gout = on_gpu(out), gdx = on_gpu(dx);
  activation_forward<T>(data<T>(x), data<T>(bias), data<T>(out), shape);
  activation_forward_cuda<T>(data<T>(gx), data<T>(gbias), data<T>(gout), shape, device::current_stream());
  expect_twins<T>(gout, out, "activation");
  expect_twins<T>(gx, x, "x + bias of the activation");
  const bool again = kIsHalf<T>;
  const ColumnSumsShape columns{shape.rows, shape.width, shape.width};
  const at::Tensor line = at::zeros({1, shape.width}, at::TensorOptions().dtype(kType<Wide<T>>)),
                   lines = on_gpu(at::zeros({column_lines<T>(columns), shape.width}, line.options()));
  const auto of_units = [&](const at::Tensor& x) { return shape.gated ? nullptr : data<Wide<T>>(x); };
  activation_backward<T>(data<T>(dy), data<T>(x), again ? data<T>(bias) : nullptr, data<T>(dx), of_units(line),
                         shape);
  activation_backward_cuda<T>(data<T>(gdy), data<T>(gx), again ? data<T>(gbias) : nullptr, data<T>(gdx),
                              of_units(lines), shape, device::current_stream());
  expect_twins<T>(gdx, dx, "gradient of the activation");
  // A half gradient may round to its neighbor in every row.
  if (!shape.gated) {
    constexpr double neighbor = std::is_same_v<T, Bf16> ? 0x1p-7 : std::is_same_v<T, F16> ? 0x1p-10 : 0;
    const at::Tensor sizes = gdx.cpu().to(at::kDouble).abs().sum(0);
    const at::Tensor error = (lines.cpu().sum(0) - line[0]).to(at::kDouble).abs() - sizes * neighbor;
    EXPECT_LE(error.max().item<double>(), 4e-6 * std::max(1.0, sizes.max().item<double>())) << "sums of the gradient";
  }
}

// Integers, whose sums are exact in any order.
template <class T>
void check_column_sums(const ColumnSumsShape& shape) {
  SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.width << " of " << shape.stride << " adds "
                                  << shape.adds);
  const at::Tensor x = at::randint(-8, 9, {shape.rows, shape.stride}, at::kLong).to(kType<T>),
                   out = at::randint(-8, 9, {shape.width}, at::kLong).to(kType<Wide<T>>), gx = on_gpu(x),
                   gout = on_gpu(out),
                   lines = on_gpu(at::empty({column_lines<T>(shape), shape.width}, out.options()));
  column_sums<T>(data<Wide<T>>(out), data<T>(x), shape);
  column_sums_cuda<T>(data<Wide<T>>(gout), data<T>(gx), data<Wide<T>>(lines), shape, device::current_stream());
  EXPECT_TRUE(at::equal(gout.to(at::kCPU), out));
}

template <class T>
void check_add_elements(int64_t n, int64_t shift, bool adds) {
  SCOPED_TRACE(testing::Message() << n << " shifted " << shift << " adds " << adds);
  const at::Tensor x = values<T>({n}, 0.7), out = values<float>({n}, 0.3), gx = on_gpu(x);
  const at::Tensor gout = at::empty({n + shift}, on_gpu(out).options()).narrow(0, shift, n);
  gout.copy_(out);
  add_elements<T>(data<float>(out), data<T>(x), n, adds);
  add_elements_cuda<T>(data<float>(gout), data<T>(gx), n, adds, device::current_stream());
  EXPECT_TRUE(at::equal(gout.to(at::kCPU), out));
}

// Queries, keys and values of heads of `dim`; queries and keys are rotated.
template <class T>
void check_heads(int64_t dim) {
  constexpr int64_t kRows = 5, kGroups = 3, kQueries = 4;
  const HeadsShape shape{kRows, 2, kGroups, dim, dim / 2 / 2 * 2};
  const at::Tensor fused = values<T>({kRows, 2, kGroups, (kQueries + 2) * dim}, 0.7),
                   cos = values<Wide<T>>({kRows, shape.rotary / 2}, 0.2),
                   sin = values<Wide<T>>({kRows, shape.rotary / 2}, 0.9);
  const auto make = [&] {
    std::vector<at::Tensor> parts;
    for (const int64_t heads : {kQueries, int64_t{1}, int64_t{1}})
      parts.push_back(at::zeros({kRows, 2, kGroups * heads, dim}, fused.options()));
    return parts;
  };
  const auto regions = [&](const std::vector<at::Tensor>& parts, const at::Tensor& cosines, const at::Tensor& sines) {
    HeadRegions<T> all;
    for (size_t which = 0; which < parts.size(); ++which) {
      const at::Tensor& x = parts[which];
      all.regions[which] = {data<T>(x), x.size(2) / kGroups, x.stride(0), x.stride(1), x.stride(2)};
      if (which < 2) all.regions[which].cos = data<Wide<T>>(cosines), all.regions[which].sin = data<Wide<T>>(sines);
    }
    return all;
  };
  const std::vector<at::Tensor> parts = make();
  std::vector<at::Tensor> on_device = make();
  for (at::Tensor& part : on_device) part = on_gpu(part);
  const at::Tensor gfused = on_gpu(fused), gcos = on_gpu(cos), gsin = on_gpu(sin);
  split_heads<T>(data<T>(fused), regions(parts, cos, sin), shape);
  split_heads_cuda<T>(data<T>(gfused), regions(on_device, gcos, gsin), shape, device::current_stream());
  for (size_t which = 0; which < parts.size(); ++which) expect_twins<T>(on_device[which], parts[which], "heads");
  join_heads<T>(data<T>(fused), regions(parts, cos, sin), shape);
  join_heads_cuda<T>(data<T>(gfused), regions(on_device, gcos, gsin), shape, device::current_stream());
  expect_twins<T>(gfused, fused, "joined heads");
  const ColumnSumsShape columns{kRows * 2, fused.numel() / (kRows * 2), fused.numel() / (kRows * 2)};
  const at::Tensor lines = on_gpu(at::zeros({column_lines<T>(columns), columns.width}, cos.options()));
  HeadRegions<T> summed = regions(on_device, gcos, gsin);
  summed.sums = data<Wide<T>>(lines);
  join_heads_cuda<T>(data<T>(gfused), summed, shape, device::current_stream());
  expect_twins<T>(gfused, fused, "joined heads with sums");
  const at::Tensor rows = gfused.cpu().to(at::kDouble).view({kRows * 2, columns.width});
  expect_twins<Wide<T>>(lines.sum(0), rows.sum(0), "sums of joined heads", rows.abs().sum(0).max().item<double>());
  if constexpr (!kIsHalf<T>) {  // a half value may round to its neighbor before its rotation
    const at::Tensor raw = values<T>(fused.sizes().vec(), 0.9), graw = on_gpu(raw), weight = values<T>({dim}, 0.2),
                     gweight = on_gpu(weight), rstd = at::zeros({kRows * 2 * kGroups * kQueries}, cos.options()),
                     grstd = on_gpu(rstd);
    const int64_t heads = kRows * 2 * kGroups * kQueries;
    const at::Tensor line = at::zeros({1, dim}, cos.options()),
                     glines = on_gpu(at::zeros({head_lines(heads), dim}, cos.options()));
    const auto normed = [&](HeadRegions<T> all, const at::Tensor& product, const at::Tensor& weights,
                            const at::Tensor& statistics, const at::Tensor& sums) {
      all.raw = data<T>(product);
      all.regions[0].norm = {data<T>(weights), 1e-5, true, data<Wide<T>>(statistics), data<Wide<T>>(sums)};
      return all;
    };
    const HeadRegions<T> here = normed(regions(parts, cos, sin), raw, weight, rstd, line),
                         there = normed(regions(on_device, gcos, gsin), graw, gweight, grstd, glines);
    split_heads<T>(data<T>(raw), here, shape);
    split_heads_cuda<T>(data<T>(graw), there, shape, device::current_stream());
    for (size_t which = 0; which < parts.size(); ++which)
      expect_twins<T>(on_device[which], parts[which], "normalized heads");
    join_heads<T>(data<T>(fused), here, shape);
    join_heads_cuda<T>(data<T>(gfused), there, shape, device::current_stream());
    expect_twins<T>(gfused, fused, "joined normalized heads");
    const double sizes = parts[0].abs().sum().item<double>() * 3;  // of a normal value of at most sqrt(dim)
    expect_twins<T>(glines.sum(0), line[0], "gradient of the heads' norm", sizes);
  }
}

template <class T>
void check_rope() {
  const at::Tensor x = values<T>({17, 3, 5, 24}, 0.7), cos = wide_values<T>(17 * 8, 0.2),
                   sin = wide_values<T>(17 * 8, 0.9), gx = on_gpu(x), gcos = on_gpu(cos), gsin = on_gpu(sin);
  const RopeShape shape{17, 3, 5, 16, x.stride(0), x.stride(1), x.stride(2)};
  for (const int direction : {1, -1}) {
    rope<T>(data<T>(x), data<Wide<T>>(cos), data<Wide<T>>(sin), direction, shape);
    rope_cuda<T>(data<T>(gx), data<Wide<T>>(gcos), data<Wide<T>>(gsin), direction, shape, device::current_stream());
    expect_twins<T>(gx, x, "rope");
    gx.copy_(x);
  }
}

template <class T>
void check_cross_entropy(const LogitsShape& shape) {
  using A = Wide<T>;
  const at::Tensor x = values<T>({shape.rows, shape.stride}, 0.7),
                   targets = at::arange(shape.rows, at::kLong) * 7 - 3,
                   statistics = at::empty({4, shape.rows}, wide_values<T>(1, 1).options()),
                   scale = wide_values<T>(shape.rows, 0.4);
  const at::Tensor gx = on_gpu(x), gtargets = on_gpu(targets), gstatistics = on_gpu(statistics),
                   gscale = on_gpu(scale);
  const auto place = [&](const at::Tensor& all) -> RowStatistics<A> {
    A* base = data<A>(all);
    return {base, base + shape.rows, base + 2 * shape.rows, base + 3 * shape.rows};
  };
  const auto* index = targets.const_data_ptr<int64_t>();
  const auto* gindex = gtargets.const_data_ptr<int64_t>();
  cross_entropy_statistics<T>(data<T>(x), index, place(statistics), shape);
  cross_entropy_statistics_cuda<T>(data<T>(gx), gindex, place(gstatistics), shape, device::current_stream());
  for (int64_t i = 0; i < 3; ++i) expect_twins<A>(gstatistics[i], statistics[i], "statistics of the logits");
  expect_twins<A>(gstatistics[3], statistics[3], "sum of the logits",
                  x.to(at::kDouble).abs().sum(1).max().template item<double>());
  const at::Tensor lse = statistics[1].log().add(statistics[0]), glse = on_gpu(lse);
  cross_entropy_backward<T>(data<T>(x), index, {data<A>(lse), data<A>(scale), 0.9, 0.1 / 40}, shape);
  cross_entropy_backward_cuda<T>(data<T>(gx), gindex, {data<A>(glse), data<A>(gscale), 0.9, 0.1 / 40}, shape,
                                 device::current_stream());
  expect_twins<T>(gx, x, "gradient of the logits");
}

template <class T>
void check_all() {
  for (const auto kind : {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
                          Activation::relu, Activation::squared_relu}) {
    for (const bool gated : {false, true}) {
      check_activation<T>({1, 1, kind, gated});
      check_activation<T>({33, 70, kind, gated});
    }
  }
  for (const bool adds : {false, true}) {
    check_column_sums<T>({0, 8, 8, adds});
    check_column_sums<T>({1, 1, 1, adds});
    check_column_sums<T>({333, 257, 257, adds});
    check_column_sums<T>({8192, 768, 768, adds});
    check_column_sums<T>({2000, 264, 272, adds});
    check_column_sums<T>({140000, 40, 40, adds});
  }
  if constexpr (kIsHalf<T>) {
    for (const bool adds : {false, true}) {
      check_add_elements<T>(0, 0, adds);
      check_add_elements<T>(1003, 0, adds);
      check_add_elements<T>(1003, 1, adds);
      check_add_elements<T>(20000001, 0, adds);
    }
  }
  check_rope<T>();
  for (const int64_t dim : {64, 7}) check_heads<T>(dim);
  check_cross_entropy<T>({5, 41, 37});
  check_cross_entropy<T>({9, 3000, 3000});
}

std::string refusal() {
  float x = 1, cos = 1;
  try {
    rope_cuda<float>(&x, &cos, &cos, 1, {1, 1, 1, 2, 1, 1, 1}, nullptr);
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

TEST(LayerKernelsCuda, TheGpuGetsWhatTheCpuTwinsGetAndWithoutOneTheCallSaysSo) {
  if (const char* why = expected_refusal()) {
    EXPECT_NE(refusal().find(std::string("[cuda] kernel rope") + why), std::string::npos) << refusal();
  }
  MPX_NEED_GPU_KERNELS();
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels::layer_kernels_cuda_test
