// How far a replay may be off from the golden run, by the precision that both computed in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace metroplex::parity {

// What is recorded of a tensor.
struct Recorded {
  std::string name;
  int64_t numel = 1;
  double l2 = 0;
};

// fp32: fixed, absolute (the gradient norm relative): rounding of a few thousand additions, and of other orders.
// bf16 and fp16: `unit` is one rounding, 2^-8 or 2^-11 relative; the two programs round at some other places.
class Tolerances {
 public:
  // `moved`: the sum of the run's learning rates, the farthest that Adam moves a parameter.
  Tolerances(const std::string& dtype, int64_t num_layers, double moved)
      : unit_(dtype == "bf16"   ? 0x1p-8
              : dtype == "fp16" ? 0x1p-11
                                : 0.0),
        num_layers_(num_layers),
        moved_(moved) {}

  // A mean over a hundred tokens of losses near 4, whose logits went through eight rounded operations a layer
  // (relative error unit * (8 L)^0.5, independent from token to token): 4 * (8 L)^0.5 * unit / 10, and three times
  // that; parameters that have moved apart add as much again.
  double loss() const { return half() ? 2.4 * std::sqrt(8.0 * layers()) * unit_ : 2e-6; }
  // Relative. The errors of single elements average out; what all of them share is the forward's.
  double grad_norm() const { return half() ? 3 * std::sqrt(8.0 * layers()) * unit_ : 2e-5; }

  // A gradient went through sixteen rounded operations a layer: three deviations of so many. An element is also a sum
  // whose partial sums are a few times the tensor's root mean square. In a sum over a tensor the errors of a row go
  // together, since all of it was made with the same rounded gradient of an output; those of different rows are
  // independent: l2 times the root of a row's length.
  double gradient_element(const Recorded& of, double value) const {
    return half() ? passed() * (std::abs(value) + 4 * rms(of)) : fixed(of);
  }
  double gradient_sum(const Recorded& of) const { return half() ? passed() * of.l2 * std::sqrt(row(of)) : fixed(of); }

  // Adam divides a gradient by its own size: where it is no larger than its rounding error, updates have any sign. In
  // bf16 that may cost a quarter of the way, in fp16 an eighth of that; to it comes the last bit of the parameter
  // itself. Tensors as a whole: few elements are such, and errors are independent; three times the deviation for a
  // tenth of that element error, and of one rounding of each value.
  double parameter_element(const Recorded& of, double value) const {
    return half() ? way() + 2 * unit_ * std::abs(value) : fixed(of);
  }
  double parameter_sum(const Recorded& of) const {
    if (!half()) return fixed(of);
    // A third of linear_qkv.bias, or less, moves by its noise's sign: the whole way.
    const double noise = has_key_bias(of) ? moved_ * static_cast<double>(of.numel) / 3 : 0;
    return 3 * (0.1 * way() * std::sqrt(static_cast<double>(of.numel)) + unit_ * of.l2) + noise;
  }

 private:
  bool half() const { return unit_ > 0; }
  double layers() const { return static_cast<double>(num_layers_); }
  double passed() const { return 3 * std::sqrt(16.0 * layers()) * unit_; }
  double way() const { return 0.25 * moved_ * unit_ * 0x1p8; }
  // Of a square matrix of so many elements.
  static double row(const Recorded& of) { return std::sqrt(static_cast<double>(of.numel)); }
  static double rms(const Recorded& of) {
    return of.l2 / std::sqrt(static_cast<double>(std::max<int64_t>(1, of.numel)));
  }
  // The gradient of the key bias is zero in exact arithmetic, so Adam turns its rounding noise into whole steps.
  static bool has_key_bias(const Recorded& of) { return of.name.find("linear_qkv.bias") != std::string::npos; }
  static double fixed(const Recorded& of) { return has_key_bias(of) ? 1e-3 : 2e-5; }

  double unit_;
  int64_t num_layers_;
  double moved_;
};

}  // namespace metroplex::parity
