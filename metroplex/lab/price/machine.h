// Description of a machine: peak rates of a device, the rates that operators achieve, and links between ranks. A
// description is a YAML file: one of the built-in files of clusters/, or the output of `metroplex calibrate`
// (docs/cost.md lists the keys).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "price/link.h"

namespace metroplex::price {

// A value at a size. Between two points, the logarithm of the value is linear in the logarithm of the size. Outside,
// the value of the nearest point holds.
struct CurvePoint {
  double size = 0, value = 0;
};
using Curve = std::vector<CurvePoint>;  // ascending sizes
double interpolate(const Curve& curve, double size);

// One operator as it was measured.
struct MeasuredOperator {
  double flops = 0, bytes = 0, seconds = 0;
};

struct Machine {
  std::string name;
  bool gpu = false;
  int capability = 0;                        // 90 for sm_90: selects operators; 0: unknown, or not NVIDIA's
  std::map<std::string, double> peak_flops;  // FLOP/s by dtype: "bf16"
  double memory_bytes = 0, memory_bytes_per_s = 0;
  double cache_bytes = 0, cache_bytes_per_s = 0;  // last-level cache; 0: not modeled
  double launch_s = 0;                            // of one operator on the host
  // Fraction of the peak that operators achieve, by class and size. Classes: matmul, grouped_matmul, attention (sizes
  // in FLOPs of bf16, if it has a peak) and memory (bytes).
  std::map<std::string, Curve> shares;
  // Measured operators. The key is name and dtype: "mm bf16".
  std::map<std::string, std::vector<MeasuredOperator>> measured;
  // Host seconds per libtorch operator and own operator, and per byte that an operator reads or writes, for memory
  // that is taken and returned between operators. Only of a calibrated machine.
  double library_call_s = 0, own_call_s = 0, byte_s = 0;
  Cluster cluster;
  double host_bytes_per_s = 0, file_bytes_per_s = 0;
  double error = 0.15;                         // relative error bar of a predicted step
  std::map<std::string, std::string> sources;  // of a figure, by its key path: "device.peak_flops.bf16"
  std::string origin;                          // file or built-in name that it was read from; not written
};

// Requires memory_bytes_per_s and links. Rates are 1 to 1e30 per second, times at most 1e6 s, shares and `error` at
// most 1. The ranks of a link are a multiple of those of the link before. Throws base::Error("cost") that names
// `origin`, the key, the value, the rule, and a fix.
Machine read_machine(std::string_view yaml, const std::string& origin);
std::string write_machine(const Machine& machine);

std::vector<std::string> known_machines();
// The description with a built-in name, or the file at this path.
Machine find_machine(const std::string& name_or_path);

struct Operator {
  std::string_view name, dtype;  // "mm", "bf16"
  double flops = 0, bytes = 0;
};
// Time of one operator on the device, without host time. Measured operators: work / rate. Work is FLOPs, or bytes of
// an operator without FLOPs. The logarithm of the rate is the mean over the measured ones, weighted by the distance
// in log(flops) and log(bytes) to the power of -4 (Shepard 1968): products of equal FLOPs and other shapes have other
// rates. Others: the larger of flops / (peak * share) and bytes / (bandwidth * share), the roofline model (Williams
// et al. 2009).
double operator_seconds(const Machine& machine, const Operator& one);
// Host time to issue it: library_call_s for names with "::", own_call_s otherwise, and byte_s of its bytes; launch_s
// if the machine is not calibrated.
double issue_seconds(const Machine& machine, const Operator& one);

}  // namespace metroplex::price
