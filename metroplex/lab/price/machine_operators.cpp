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
  MPX_CHECK(found != machine.peak_flops.end(), "cost", machine.name, ": device.peak_flops has no '", dtype,
            "', which the run computes in; add it");
  return found->second;
}

double memory_seconds(const Machine& machine, double bytes) {
  if (machine.memory_bytes_per_s <= 0 || bytes <= 0) return 0;
  return bytes / (machine.memory_bytes_per_s * share(machine, "memory", bytes));
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
  const double work = one.flops > 0 ? one.flops : one.bytes;
  if (work <= 0) return 0;
  std::string key(one.name);
  key.append(" ").append(one.dtype);
  if (const auto measured = machine.measured.find(key); measured != machine.measured.end()) {
    // Below the smallest measured size the time is constant. Above the largest one, more bytes take the time of a
    // copy.
    const Curve& curve = measured->second;
    const double known = std::clamp(work, curve.front().size, curve.back().size);
    const double seconds = known / interpolate(curve, known);
    if (work <= known) return seconds;
    return one.flops > 0 ? seconds * work / known
                         : seconds + memory_seconds(machine, work) - memory_seconds(machine, known);
  }
  double seconds = 0;
  if (one.flops > 0)
    seconds = one.flops / (peak(machine, one.dtype) * share(machine, operator_class(one), one.flops));
  return std::max(seconds, memory_seconds(machine, one.bytes));
}

double issue_seconds(const Machine& machine, const Operator& one) {
  if (machine.library_call_s == 0 && machine.own_call_s == 0) return machine.launch_s;
  return one.name.find("::") != std::string_view::npos ? machine.library_call_s : machine.own_call_s;
}

}  // namespace metroplex::price
