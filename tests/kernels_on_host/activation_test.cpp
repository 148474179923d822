#include "kernels/activation.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::activation_test {
namespace {

template <class T>
struct Case {
  ActivationShape shape;
  bool with_bias;
  size_t shift;  // of all arrays
  int64_t wide = shape.width * (shape.gated ? 2 : 1);
  std::vector<T> x = made<T>(shape.rows * wide, 0.7), dy = made<T>(shape.rows * shape.width, 0.3);
  std::vector<T> bias = with_bias ? made<T>(wide, 0.2) : std::vector<T>();
};

template <class T>
void check_forward(const Case<T>& c) {
  std::vector<T> x = c.x, out(c.dy.size());
  activation_forward<T>(x.data(), c.with_bias ? c.bias.data() : nullptr, out.data(), c.shape);
  const auto got = in_all_orders([&] {
    const DeviceArray<T> gx(c.x, kIsHalf<T> ? Use::in : Use::both, "x", c.shift), gout(out, Use::out, "out", c.shift);
    const DeviceArray<T> bias(c.bias, Use::in, "bias", c.shift);
    activation_forward_cuda<T>(gx.data(), c.with_bias ? bias.data() : nullptr, gout.data(), c.shape, nullptr);
    return std::tuple{gx.values(), gout.values()};
  });
  expect_twins(std::get<0>(got), x, "x + bias");
  expect_twins(std::get<1>(got), out, "activation");
}

template <class T>
void check_backward(const Case<T>& c) {
  const bool with_bias = c.with_bias && kIsHalf<T>;
  std::vector<T> dx(c.x.size());
  activation_backward<T>(c.dy.data(), c.x.data(), with_bias ? c.bias.data() : nullptr, dx.data(), c.shape);
  const auto got = in_all_orders([&] {
    const DeviceArray<T> x(c.x, Use::in, "x", c.shift), dy(c.dy, Use::in, "dy", c.shift),
        gdx(dx, Use::out, "dx", c.shift);
    const DeviceArray<T> bias(c.bias, Use::in, "bias", c.shift);
    activation_backward_cuda<T>(dy.data(), x.data(), with_bias ? bias.data() : nullptr, gdx.data(), c.shape, nullptr);
    return std::tuple{gdx.values()};
  });
  expect_twins(std::get<0>(got), dx, "gradient of the activation");
}

template <class T>
void check_all() {
  for (const auto kind : {Activation::gelu, Activation::gelu_tanh, Activation::quick_gelu, Activation::silu,
                          Activation::relu, Activation::squared_relu}) {
    for (const bool gated : {false, true}) {
      for (const auto& [rows, width] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {3, 0}, {1, 1}, {7, 70}, {5, 64}}) {
        for (const bool with_bias : {false, true}) {
          for (const size_t shift : {0, 1}) {
            SCOPED_TRACE(testing::Message() << rows << " x " << width << (gated ? " gated" : "") << " kind "
                                            << static_cast<int>(kind) << " bias " << with_bias << " shift " << shift);
            const Case<T> c{{rows, width, kind, gated}, with_bias, shift};
            check_forward(c);
            check_backward(c);
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
