// The router kernels: random rows against Philox word by word, and on a GPU all kernels against their CPU reference
// implementations. Without a GPU the calls must report that they cannot run.
#include "kernels/twins.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/philox.h"
#include "device/device.h"
#include "kernels/balance.h"
#include "kernels/random_rows.h"
#include "kernels/route.h"
#include "kernels/sinkhorn.h"
#include "support/gpu.h"

namespace metroplex::kernels::router_kernels_cuda_test {
namespace {

constexpr uint64_t kKey = 0x123456789ABCDEF0ull;

DropoutShape rows_of(const at::Tensor& counters, int64_t rows, int64_t width) {
  return {{counters.const_data_ptr<int64_t>(), counters.numel(), 3}, rows, width, kKey};
}

TEST(RouterKernels, RandomRowsAreWordsOfPhilox) {
  const at::Tensor counters = at::tensor({77, 78}, at::kLong);
  for (const int64_t width : {1, 5, 64, 131}) {
    const int64_t rows = 6;
    const at::Tensor uniform = at::empty({rows, width}, at::kDouble), gumbel = at::empty_like(uniform),
                     single = at::empty({rows, width}, at::kFloat);
    random_rows(data<double>(uniform), Noise::uniform, rows_of(counters, rows, width));
    random_rows(data<double>(gumbel), Noise::gumbel, rows_of(counters, rows, width));
    random_rows(data<float>(single), Noise::gumbel, rows_of(counters, rows, width));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t e = 0; e < width; ++e) {
        // Rows alternate between two samples; the first is row 3 of its sample.
        const int64_t place = (3 + row / 2) * width + e;
        const base::PhiloxBlock block =
            base::philox4x32(kKey, static_cast<uint64_t>(place / 4), static_cast<uint64_t>(77 + row % 2));
        const double u = (block[static_cast<size_t>(place % 4)] + 0.5) / 4294967296.0;
        ASSERT_EQ(uniform[row][e].item<double>(), u) << row << " " << e;
        ASSERT_DOUBLE_EQ(gumbel[row][e].item<double>(), -std::log(-std::log(u)));
        ASSERT_EQ(single[row][e].item<float>(), static_cast<float>(gumbel[row][e].item<double>()));
      }
    }
  }
}

template <class T>
void check_random() {
  const at::Tensor counters = at::tensor({77, 78, 79}, at::kLong), gcounters = on_gpu(counters);
  for (const Noise noise : {Noise::uniform, Noise::gumbel}) {
    const at::Tensor out = at::empty({9, 131}, kType<T>), gout = on_gpu(out);
    random_rows<T>(data<T>(out), noise, rows_of(counters, 9, 131));
    random_rows_cuda<T>(data<T>(gout), noise, rows_of(gcounters, 9, 131), device::current_stream());
    expect_twins<T>(gout, out, "random rows");
  }
}

template <class T>
void check_sinkhorn(int64_t rows, int64_t columns) {
  const at::Tensor x = values<T>({rows, columns}, 0.7), out = at::empty_like(x),
                   factors = at::empty({rows + 2 * columns}, x.options());
  const at::Tensor gx = on_gpu(x), gout = on_gpu(out), gfactors = on_gpu(factors);
  const SinkhornShape shape{rows, columns, 1e-4};
  sinkhorn<T>(data<T>(x), data<T>(out), data<T>(factors), shape);
  sinkhorn_cuda<T>(data<T>(gx), data<T>(gout), data<T>(gfactors), shape, device::current_stream());
  // Another order of sums may converge an iteration earlier: then columns differ by the tolerance.
  EXPECT_LE((gout.cpu() - out).abs().max().template item<double>(), 2e-4 * out.abs().max().template item<double>());
}

template <class T>
void check_route(const RouteShape& shape, bool bias) {
  const at::Tensor x = values<T>({shape.tokens, shape.experts}, 0.7),
                   b = bias ? values<T>({shape.experts}, 0.2) : at::Tensor(),
                   dprobs = values<T>({shape.tokens, shape.k}, 0.3), dx = at::empty_like(x),
                   probs = at::empty_like(dprobs),
                   experts = at::arange(shape.k, at::kLong).expand({shape.tokens, shape.k}).contiguous();
  const at::Tensor gx = on_gpu(x), gb = on_gpu(b), gdprobs = on_gpu(dprobs), gdx = on_gpu(dx), gprobs = on_gpu(probs),
                   gexperts = on_gpu(experts), ggroups = on_gpu(at::empty({shape.tokens, shape.groups}, x.options()));
  route_forward<T>({data<T>(x), data<T>(b), data<int64_t>(experts), data<T>(probs)}, shape);
  route_forward_cuda<T>({data<T>(gx), data<T>(gb), data<int64_t>(gexperts), data<T>(gprobs), data<T>(ggroups)}, shape,
                        device::current_stream());
  EXPECT_TRUE(gexperts.cpu().equal(experts));
  expect_twins<T>(gprobs, probs, "probabilities");
  route_backward<T>({data<T>(dprobs), data<T>(x), data<int64_t>(experts), data<T>(dx)}, shape);
  route_backward_cuda<T>({data<T>(gdprobs), data<T>(gx), data<int64_t>(gexperts), data<T>(gdx)}, shape,
                         device::current_stream());
  expect_twins<T>(gdx, dx, "gradient of the logits");
}

template <class T>
void check_balance(BalanceShape shape) {
  shape.chosen = 2, shape.mask = 300;
  const at::Tensor x = values<T>({shape.tokens, shape.experts}, 0.7), dsums = values<double>({shape.bins() + 1}, 0.3),
                   sums = at::empty({shape.sums()}, dsums.options()),
                   lines = at::empty({balance_chunks(shape), shape.line()}, dsums.options()), dx = at::empty_like(x),
                   mask = values<T>({300}, 0.1), scale = at::full({1}, 1.5, at::kDouble),
                   chosen = at::arange(2 * shape.tokens, at::kLong).mul_(7).remainder_(shape.experts);
  const at::Tensor gx = on_gpu(x), gchosen = on_gpu(chosen), gmask = on_gpu(mask), gscale = on_gpu(scale),
                   gdsums = on_gpu(dsums), gsums = on_gpu(sums), glines = on_gpu(lines), gdx = on_gpu(dx);
  balance_forward<T>({data<T>(x), data<int64_t>(chosen), data<T>(mask)}, data<double>(sums), data<double>(lines),
                     shape);
  balance_forward_cuda<T>({data<T>(gx), data<int64_t>(gchosen), data<T>(gmask)}, data<double>(gsums),
                          data<double>(glines), shape, device::current_stream());
  expect_twins<T>(gsums, sums, "sums of scores");
  balance_backward<T>(data<T>(x), data<double>(dsums), data<double>(scale), data<T>(dx), shape);
  balance_backward_cuda<T>(data<T>(gx), data<double>(gdsums), data<double>(gscale), data<T>(gdx), shape,
                           device::current_stream());
  expect_twins<T>(gdx, dx, "gradient of the scores");
  const BalanceTerm term{BalanceTerm::Kind::aux, shape.samples, shape.experts, 0.3, 2};
  const at::Tensor weight = at::full({1}, 5.5, at::kDouble), value = at::empty({1}, at::kDouble),
                   gradient = at::empty_like(dsums), gweight = on_gpu(weight), gvalue = on_gpu(value),
                   ggradient = on_gpu(gradient);
  balance_term(data<double>(sums), data<double>(weight), data<double>(value), data<double>(gradient), term);
  balance_term_cuda(data<double>(gsums), data<double>(gweight), data<double>(gvalue), data<double>(ggradient), term,
                    device::current_stream());
  expect_twins<T>(gvalue, value, "loss term");
  expect_twins<T>(ggradient, gradient, "gradient of the sums");
}

template <class T>
void check_all() {
  for (const BalanceScore score :
       {BalanceScore::none, BalanceScore::softmax, BalanceScore::sigmoid, BalanceScore::sqrtsoftplus}) {
    check_balance<T>({70, 8, 1, score, true});
    check_balance<T>({70, 300, 2, score, score == BalanceScore::sigmoid});
  }
  check_random<T>();
  check_sinkhorn<T>(50, 7);
  check_sinkhorn<T>(70, 300);
  for (const RouteScore score :
       {RouteScore::softmax_of_chosen, RouteScore::softmax_of_all, RouteScore::sigmoid, RouteScore::sqrtsoftplus}) {
    const bool own = score == RouteScore::sigmoid || score == RouteScore::sqrtsoftplus;
    check_route<T>({33, 8, 2, score}, false);
    check_route<T>({33, 100, 8, score, 2.5}, own);
    check_route<T>({5, 8, 1, score}, own);
    check_route<T>(
        {.tokens = 65, .experts = 256, .k = 8, .score = score, .groups = 8, .groups_chosen = 4, .best_of_group = 2},
        own);
    check_route<T>({9, 8, 8, score, 1, true}, false);
  }
}

std::string refusal() {
  float x = 1;
  try {
    sinkhorn_cuda<float>(&x, &x, &x, {1, 1}, nullptr);
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

TEST(RouterKernelsCuda, TheGpuGetsWhatTheCpuTwinsGetAndWithoutOneTheCallSaysSo) {
  if (const char* why = expected_refusal()) {
    EXPECT_NE(refusal().find(std::string("[cuda] kernel sinkhorn") + why), std::string::npos) << refusal();
  }
  MPX_NEED_GPU_KERNELS();
  check_all<float>();
  check_all<double>();
}

}  // namespace
}  // namespace metroplex::kernels::router_kernels_cuda_test
