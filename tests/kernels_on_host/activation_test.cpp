#include "kernels/activation.h"
#include "kernels/column_sums.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::activation_test {
namespace {

template <class T>
struct Case {
  ActivationShape shape;
  bool with_bias;
  size_t shift;  // of all arrays
  int64_t wide = shape.width * (shape.gated ? 2 : 1);
  std::vector<T> x = make_values<T>(shape.rows * wide, 0.7), dy = make_values<T>(shape.rows * shape.width, 0.3);
  std::vector<T> bias = with_bias ? make_values<T>(wide, 0.2) : std::vector<T>();
};

template <class T>
void check_forward(const Case<T>& test_case) {
  std::vector<T> x = test_case.x, out(test_case.dy.size());
  activation_forward<T>(x.data(), test_case.with_bias ? test_case.bias.data() : nullptr, out.data(), test_case.shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> gx(test_case.x, kIsHalf<T> ? Use::in : Use::both, "x", test_case.shift),
        gout(out, Use::out, "out", test_case.shift);
    const DeviceArray<T> bias(test_case.bias, Use::in, "bias", test_case.shift);
    activation_forward_cuda<T>(gx.data(), test_case.with_bias ? bias.data() : nullptr, gout.data(), test_case.shape,
                               nullptr);
    return std::tuple{gx.values(), gout.values()};
  });
  expect_close(std::get<0>(got), x, "x + bias");
  expect_close(std::get<1>(got), out, "activation");
}

template <class T>
void check_backward(const Case<T>& test_case) {
  const bool with_bias = test_case.with_bias && kIsHalf<T>;
  const ActivationShape& shape = test_case.shape;
  const ColumnSumsShape columns{shape.rows, shape.width, shape.width};
  const bool sums = test_case.with_bias && !shape.gated;
  std::vector<T> dx(test_case.x.size());
  std::vector<Wide<T>> line(static_cast<size_t>(sums ? shape.width : 0)),
      lines(static_cast<size_t>(column_lines<T>(columns)) * line.size());
  activation_backward<T>(test_case.dy.data(), test_case.x.data(), with_bias ? test_case.bias.data() : nullptr,
                         dx.data(), sums ? line.data() : nullptr, shape);
  const auto got = run_all_orders([&] {
    const DeviceArray<T> x(test_case.x, Use::in, "x", test_case.shift),
        dy(test_case.dy, Use::in, "dy", test_case.shift), gdx(dx, Use::out, "dx", test_case.shift);
    const DeviceArray<T> bias(test_case.bias, Use::in, "bias", test_case.shift);
    const DeviceArray<Wide<T>> glines(lines, Use::both, "lines", test_case.shift), gline(line, Use::out, "sums");
    activation_backward_cuda<T>(dy.data(), x.data(), with_bias ? bias.data() : nullptr, gdx.data(),
                                sums ? glines.data() : nullptr, shape, nullptr);
    sum_lines_cuda<Wide<T>>(
        {glines.data(), column_lines<T>(columns), shape.width, sums ? shape.width : 0, gline.data()}, nullptr);
    return std::tuple{gdx.values(), gline.values()};
  });
  expect_close(std::get<0>(got), dx, "gradient of the activation");
  // A half gradient may round to its neighbor.
  const double neighbor = std::is_same_v<T, Bf16> ? 0x1p-7 : std::is_same_v<T, F16> ? 0x1p-10 : 0;
  for (size_t i = 0; i < line.size(); ++i) {
    double size = 0;
    for (size_t at = i; at < dx.size(); at += line.size()) size += std::fabs(double{load(dx[at])}) + 1e-3;
    const double unit = std::is_same_v<T, double> ? 1e-12 : 4e-6;
    ASSERT_NEAR(std::get<1>(got)[i], line[i], (neighbor + 2 * unit) * size) << "sum of column " << i;
  }
}

template <class T>
void check_all() {
  for (const auto kind : {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
                          Activation::relu, Activation::squared_relu}) {
    for (const bool gated : {false, true}) {
      for (const auto& [rows, width] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {3, 0}, {1, 1}, {7, 70}, {37, 64}}) {
        for (const bool with_bias : {false, true}) {
          for (const size_t shift : {0, 1}) {
            SCOPED_TRACE(testing::Message() << rows << " x " << width << (gated ? " gated" : "") << " kind "
                                            << static_cast<int>(kind) << " bias " << with_bias << " shift " << shift);
            const Case<T> test_case{{rows, width, kind, gated}, with_bias, shift};
            check_forward(test_case);
            check_backward(test_case);
            if (!gated) continue;
            const Case<T> limited{{rows, width, kind, gated, {0.4, 1.0}}, with_bias, shift};
            check_forward(limited);
            check_backward(limited);
          }
        }
      }
    }
  }
}

TEST(ActivationOnHost, EveryKindAndShapeIsAsItsCpuTwin) {
  check_all<float>();
  check_all<double>();
  check_all<Bf16>();
  check_all<F16>();
}

}  // namespace
}  // namespace metroplex::kernels_on_host::activation_test
