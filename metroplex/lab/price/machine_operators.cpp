#include "price/machine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace metroplex::price {
namespace {

std::string operator_class(const Operator& one) {
  if (one.flops <= 0) return "memory";
  if (one.name.starts_with("grouped")) return "grouped_matmul";
  return one.name.find("attention") != std::string_view::npos ? "attention" : "matmul";
}

double share(const Machine& machine, const std::string& kind, double size) {
  const auto curve = machine.shares.find(kind);
  return curve == machine.shares.end() ? 1 : interpolate(curve->second, size);
}

double peak(const Machine& machine, std::string_view dtype) {
  const auto found = machine.peak_flops.find(std::string(dtype));
  MPX_CHECK(found != machine.peak_flops.end(), "cost", machine.origin.empty() ? machine.name : machine.origin,
            ": device.peak_flops has no '", dtype, "', which the run computes in; add it");
  return found->second;
}

// Shares of products are those of bf16. A product of another dtype has the share of the one that takes as long in
// bf16.
double bf16_flops(const Machine& machine, const Operator& one) {
  const auto bf16 = machine.peak_flops.find("bf16");
  return bf16 == machine.peak_flops.end() ? one.flops : one.flops * bf16->second / peak(machine, one.dtype);
}

double memory_seconds(const Machine& machine, double bytes) {
  if (machine.memory_bytes_per_s <= 0 || bytes <= 0) return 0;
  return bytes / (machine.memory_bytes_per_s * share(machine, "memory", bytes));
}

double work(double flops, double bytes) { return flops > 0 ? flops : bytes; }

double square(double x) { return x * x; }

// Squared distance of two positive figures in the logarithm; 0 if one of them is unknown.
double log_distance2(double left, double right) { return left > 0 && right > 0 ? square(std::log(left / right)) : 0; }

// Below the least measured work the time is constant. Above the most, more bytes take the time of a copy.
double measured_seconds(const Machine& machine, const std::vector<MeasuredOperator>& all, const Operator& one) {
  const auto by_work = [](const MeasuredOperator& left, const MeasuredOperator& right) {
    return work(left.flops, left.bytes) < work(right.flops, right.bytes);
  };
  const auto [least, most] = std::minmax_element(all.begin(), all.end(), by_work);
  const double wanted = work(one.flops, one.bytes), largest = work(most->flops, most->bytes);
  if (wanted <= work(least->flops, least->bytes)) return least->seconds;
  if (one.flops <= 0 && wanted > largest)
    return most->seconds + memory_seconds(machine, wanted) - memory_seconds(machine, largest);
  double weights = 0, sum = 0;
  for (const MeasuredOperator& known : all) {
    constexpr double kSame = 1e-12;  // keeps a measured operator's own weight finite
    const double distance2 = log_distance2(one.flops, known.flops) + log_distance2(one.bytes, known.bytes);
    const double weight = 1 / square(distance2 + kSame);
    weights += weight;
    sum += weight * std::log(work(known.flops, known.bytes) / known.seconds);
  }
  return wanted / std::exp(sum / weights);
}

}  // namespace

double interpolate(const Curve& curve, double size) {
  MPX_ASSERT(!curve.empty(), "a curve without points");
  const auto above = std::lower_bound(curve.begin(), curve.end(), size,
                                      [](const CurvePoint& point, double x) { return point.size < x; });
  if (above == curve.begin()) return curve.front().value;
  if (above == curve.end()) return curve.back().value;
  const CurvePoint &low = *(above - 1), &high = *above;
  const double part = std::log(size / low.size) / std::log(high.size / low.size);
  return std::exp(std::log(low.value) + part * std::log(high.value / low.value));
}

double operator_seconds(const Machine& machine, const Operator& one) {
  if (one.flops <= 0 && one.bytes <= 0) return 0;
  std::string key(one.name);
  key.append(" ").append(one.dtype);
  if (const auto measured = machine.measured.find(key); measured != machine.measured.end())
    return measured_seconds(machine, measured->second, one);
  double seconds = 0;
  if (one.flops > 0)
    seconds = one.flops / (peak(machine, one.dtype) * share(machine, operator_class(one), bf16_flops(machine, one)));
  return std::max(seconds, memory_seconds(machine, one.bytes));
}

double issue_seconds(const Machine& machine, const Operator& one) {
  if (machine.library_call_s == 0 && machine.own_call_s == 0) return machine.launch_s;
  const double call = one.name.find("::") != std::string_view::npos ? machine.library_call_s : machine.own_call_s;
  return call + machine.byte_s * one.bytes;
}

}  // namespace metroplex::price
