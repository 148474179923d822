// optimizer_step [million parameters] [rounds] [threads]: the AdamW kernel over one flat range, in all relevant
// storage formats. Compares with the machine's copy rate in the same run and with at::_fused_adamw_. All alternate;
// figures are medians. Prints Markdown lines. Bytes are the minimum of a step: each input array read once, each
// output array written once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels/block8.h"
#include "kernels/optimizer_step.h"
#include "timing.h"

namespace {

using namespace metroplex::kernels;

constexpr double kLr = 1e-4, kWeightDecay = 0.01, kGradFactor = 0.5;
constexpr AdamHyper kHyper{0.9, 0.999, 1e-8};

void step(const OptimizerRange& range) {
  static const GroupRates rates = group_rates(kLr, kWeightDecay, kHyper.beta1, kHyper.beta2, 1);
  static const StepValues values{.updates = 1, .grad_factor = kGradFactor};
  adam_step(range, kHyper, {&values, &rates});
}

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
at::Tensor random(int64_t n, double scale) { return at::randn({n}, at::kFloat).mul_(scale); }

// One storage format, with its own arrays if they are not fp32.
struct Variant {
  const char* name;
  OptimizerRange range;
  double bytes;            // per parameter
  const char* rival = "";  // torch's equivalent
  std::function<void()> rival_step;
  std::vector<double> times, rival_times;
};

struct Arrays {
  int64_t n;
  at::Tensor grad, main, first, second;                          // fp32
  at::Tensor half_grad, half_param, half_first, half_second;     // bf16
  at::Tensor remainder, codes_first, codes_second, scales;       // scales: both moments
  at::Tensor torch_main, torch_first, torch_second, torch_step;  // fp32, of at::_fused_adamw_

  explicit Arrays(int64_t size)
      : n(size),
        grad(random(n, 1e-2)),
        main(random(n, 0.02)),
        first(at::zeros({n})),
        second(at::zeros({n})),
        half_grad(grad.to(at::kBFloat16)),
        half_param(main.to(at::kBFloat16)),
        half_first(at::zeros({n}, at::kBFloat16)),
        half_second(at::zeros({n}, at::kBFloat16)),
        remainder(at::zeros({n}, at::kShort)),
        codes_first(at::zeros({n}, at::kByte)),
        codes_second(at::zeros({n}, at::kByte)),
        scales(at::zeros({2 * block8_scales(n)})),
        torch_main(main.clone()),
        torch_first(at::zeros({n})),
        torch_second(at::zeros({n})),
        torch_step(at::ones({}, at::kFloat)) {}

  void fused_adamw() {
    at::_fused_adamw_({torch_main}, {grad}, {torch_first}, {torch_second}, {}, {torch_step}, kLr, kHyper.beta1,
                      kHyper.beta2, kWeightDecay, kHyper.eps, false, false,
                      at::full({}, 1 / kGradFactor, at::kFloat));
  }
};

std::vector<Variant> ways(Arrays& arrays) {
  const auto raw = [](at::Tensor& x) { return x.mutable_data_ptr(); };
  OptimizerRange plain;
  plain.n = arrays.n;
  plain.grad = raw(arrays.grad);
  plain.main = raw(arrays.main);
  plain.first = {raw(arrays.first)};
  plain.second = {raw(arrays.second)};

  OptimizerRange copied = plain;
  copied.param = raw(arrays.half_param);
  OptimizerRange half_grad = copied;
  half_grad.grad = raw(arrays.half_grad);
  half_grad.grad_number = Number::bf16;
  OptimizerRange split = copied;
  split.main = nullptr;
  split.remainder = static_cast<uint16_t*>(raw(arrays.remainder));
  OptimizerRange half_moments = copied;
  half_moments.stochastic = true;
  half_moments.first = {raw(arrays.half_first), Number::bf16};
  half_moments.second = {raw(arrays.half_second), Number::bf16};
  OptimizerRange codes = half_moments;
  float* scales = arrays.scales.mutable_data_ptr<float>();
  codes.first = {raw(arrays.codes_first), Number::block8, scales};
  codes.second = {raw(arrays.codes_second), Number::block8, scales + block8_scales(arrays.n)};

  const auto fused = [&arrays] { arrays.fused_adamw(); };
  const auto fused_and_copy = [&arrays] {
    arrays.fused_adamw();
    arrays.half_param.copy_(arrays.torch_main);
  };
  return {{"fp32", plain, 28, "fused", fused, {}, {}},
          {"fp32 + bf16 parameter", copied, 30, "fused, then copy_", fused_and_copy, {}, {}},
          {"the same, bf16 gradient", half_grad, 28, "", {}, {}, {}},
          {"bf16 parameter + remainder", split, 28, "", {}, {}, {}},
          {"fp32 + bf16 parameter, bf16 moments", half_moments, 22, "", {}, {}, {}},
          {"fp32 + bf16 parameter, 8-bit moments", codes, 18 + 16.0 / kBlock8, "", {}, {}, {}}};
}

// The first two formats and torch must agree up to the rounding of three steps, else the timings are meaningless.
void check(Arrays& arrays) {
  const double error = (arrays.main - arrays.torch_main).abs().max().item<double>();
  if (!(error < 1e-6)) throw std::runtime_error("ours and at::_fused_adamw_ differ by " + std::to_string(error));
}

// Non-temporal stores, if the machine has them, avoid reading the overwritten lines.
void stream(const char* from, char* to, int64_t bytes) {
#ifdef __SSE2__
  for (int64_t i = 0; i + 16 <= bytes; i += 16) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), part);
  }
  _mm_sfence();
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

// Milliseconds of the faster of two copy methods.
double copy_time(const at::Tensor& from, at::Tensor& to) {
  constexpr int64_t kLine = 64;
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const int64_t lines = static_cast<int64_t>(from.nbytes()) / kLine;
  const auto in_parts = [&](const auto& part) {
    at::parallel_for(0, lines, 1 << 14, [&](int64_t begin, int64_t end) {
      part(source + begin * kLine, target + begin * kLine, (end - begin) * kLine);
    });
  };
  const double plain = milliseconds([&] {
    in_parts([](const char* x, char* y, int64_t bytes) { std::memcpy(y, x, static_cast<size_t>(bytes)); });
  });
  return std::min(plain, milliseconds([&] { in_parts(stream); }));
}

}  // namespace

int main(int argc, char** argv) {
  metroplex::bench::use_run_settings(argv);
  const double millions = argc > 1 ? std::atof(argv[1]) : 124.44;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  const int threads = argc > 3 ? std::atoi(argv[3]) : static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(threads);
  Arrays arrays(static_cast<int64_t>(millions * 1e6));
  std::vector<Variant> all = ways(arrays);
  const auto n = static_cast<double>(arrays.n);

  step(all[0].range);
  arrays.fused_adamw();
  check(arrays);
  std::vector<double> copies, sums;
  at::Tensor target = at::empty_like(arrays.grad);
  for (int round = -1; round < rounds; ++round) {  // round -1 only touches the pages
    const double copied = copy_time(arrays.grad, target);
    const double summed = milliseconds([&] { gradient_sums(arrays.grad.const_data_ptr(), Number::f32, arrays.n); });
    if (round >= 0) copies.push_back(copied), sums.push_back(summed);
    for (Variant& way : all) {
      const double ours = milliseconds([&] { step(way.range); });
      const double rival = way.rival_step ? milliseconds(way.rival_step) : 0;
      if (round >= 0) way.times.push_back(ours), way.rival_times.push_back(rival);
    }
  }

  const double copy_speed = 8 * n / metroplex::bench::median(copies) / 1e6;
  std::printf(
      "AdamW over %.1fM parameters, %d threads; copying as many floats (the quicker of memcpy and streaming stores): "
      "%.0f ms, %.1f GB/s.\n\n",
      n / 1e6, threads, metroplex::bench::median(copies), copy_speed);
  std::printf(
      "| stored as | bytes a parameter | ms | GB/s | share of copy | at::_fused_adamw_ ms | times as fast |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Variant& way : all) {
    const double ours = metroplex::bench::median(way.times), speed = way.bytes * n / ours / 1e6;
    std::printf("| %s | %.1f | %.0f | %.1f | %.0f %% |", way.name, way.bytes, ours, speed, 100 * speed / copy_speed);
    const double rival = metroplex::bench::median(way.rival_times);
    way.rival_step ? std::printf(" %.0f (%s) | %.2f |\n", rival, way.rival, rival / ours) : std::printf(" | |\n");
  }
  const double sum_speed = 4 * n / metroplex::bench::median(sums) / 1e6;
  std::printf("| gradient_sums over fp32 | 4.0 | %.0f | %.1f | %.0f %% | | |\n", metroplex::bench::median(sums),
              sum_speed, 100 * sum_speed / copy_speed);
  return 0;
}
