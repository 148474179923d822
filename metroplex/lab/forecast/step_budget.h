// Time budget of a training step on one GPU: the work of a traced step by kernel class, the least time for it, and
// the measured time of each class.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "replay/step_trace.h"

namespace metroplex::forecast {

// Rates that one kernel reaches. The defaults are for an H200.
struct BudgetRates {
  double copy_bytes_per_s = 4.212e12;  // measured, bench/2026-11-26-nvidia-h200.md
  double matmul_flops = 7.94e14;       // FLOP/s of a large bf16 product: 80% of the data sheet
};

struct Work {
  int64_t launches = 0;
  double bytes = 0;  // read and written, each tensor once; of an embedding table only the rows of the tokens
  double flops = 0;
  double bound_s = 0;  // sum over operators: the longer of bytes and FLOPs at BudgetRates
};

// The functions of a trace throw base::Error("cost") for an operator without a class.

// Returns the work of a step by kernel class.
std::map<std::string, Work> sum_classes(const replay::StepTrace& trace, const BudgetRates& rates = {});

// Returns the work of matrix products by role in the layer and FLOPs of one product.
struct ProductRole {
  std::string name;
  double flops = 0;  // of one product
  bool operator<(const ProductRole& other) const {
    return name != other.name ? name < other.name : flops < other.flops;
  }
};
std::map<ProductRole, Work> sum_products(const replay::StepTrace& trace, const BudgetRates& rates = {});

// Kernel launches of a block of the model (the embedding is block 0) by operator. A view is not a launch.
struct BlockLaunches {
  int64_t forward = 0, backward = 0;
  std::map<std::string, int64_t> operators;  // of both passes
};
std::map<int, BlockLaunches> count_launches(const replay::StepTrace& trace);

struct KernelTime {
  std::string name;  // as in C++, with arguments
  double seconds = 0;
};
// Reads the CSV of `nsys stats --report cuda_gpu_kern_sum` or `cuda_gpu_mem_time_sum`, or of `ncu --page raw
// --metrics gpu__time_duration.sum`. Lines before the header are skipped. Throws base::Error("cost") if there is no
// header, or a time is not a number.
std::vector<KernelTime> read_kernel_times(std::string_view csv, const std::string& origin);

// Returns the class of a GPU kernel or copy in sum_classes(); empty if the kernel is unknown.
std::string kernel_class(std::string_view kernel);

}  // namespace metroplex::forecast
