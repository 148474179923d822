#include "forecast/step_budget.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "forecast/kernel_classes.h"

namespace metroplex::forecast {
namespace {

struct KernelRow {
  const char* part;  // of the kernel's name
  const char* kernel_class;
};

// The first matching row counts. Our kernels are identified by the types of their arguments where names repeat.
constexpr KernelRow kKernels[] = {{"sum_lines_kernel", classes::kSums},
                                  {"column_sums_kernel", classes::kSums},
                                  {"bias_dropout_add_kernel", classes::kResidual},
                                  {"DropoutNormShape", classes::kNorms},
                                  {"kernels::NormForward", classes::kNorms},
                                  {"kernels::NormBackward", classes::kNorms},
                                  {"UnitLimits", classes::kActivations},
                                  {"backward_sums_kernel", classes::kActivations},
                                  {"ExpertShape", classes::kActivations},
                                  {"rope_kernel", classes::kRope},
                                  {"heads_kernel", classes::kRope},
                                  {"join_sums_kernel", classes::kRope},
                                  {"ends_kernel", classes::kExpertProducts},
                                  {"balance_term_kernel", classes::kRouting},
                                  {"LogitsShape", classes::kCrossEntropy},
                                  {"gather_kernel", classes::kEmbedding},
                                  {"kernels::<unnamed>::scatter_kernel", classes::kEmbedding},
                                  {"kernels::(anonymous namespace)::scatter_kernel", classes::kEmbedding},
                                  {"route_forward_kernel", classes::kRouting},
                                  {"route_backward_kernel", classes::kRouting},
                                  {"balance_lines_kernel", classes::kRouting},
                                  {"balance_sums_kernel", classes::kRouting},
                                  {"balance_backward_kernel", classes::kRouting},
                                  {"PermutationShape", classes::kPermutation},
                                  {"::fill_kernel", classes::kPermutation},
                                  {"::permute_kernel", classes::kPermutation},
                                  {"SumShape", classes::kPermutation},
                                  {"::add_kernel", classes::kExpertGradients},
                                  {"RangeTable", classes::kOptimizer},
                                  {"SumsTable", classes::kGradientNorm},
                                  {"::total_kernel", classes::kGradientNorm},
                                  {"own_sums_kernel", classes::kGradientNorm},
                                  {"judge_kernel", classes::kGradientNorm},
                                  {"loss_factors_kernel", classes::kGradientNorm},
                                  {"GroupedShape", classes::kExpertProducts},
                                  {"GroupedSource", classes::kExpertProducts},
                                  {"GroupProblemShape", classes::kExpertProducts},
                                  {"prepare_grouped_gemm_data", classes::kExpertProducts},
                                  {"cudnn", classes::kAttention},
                                  {"flash", classes::kAttention},
                                  {"fmha", classes::kAttention},
                                  {"nvjet", classes::kProducts},
                                  {"gemm", classes::kProducts},
                                  {"gemv", classes::kProducts},
                                  {"cutlass", classes::kProducts},
                                  {"cublas", classes::kProducts},
                                  {"CatArrayBatchedCopy", classes::kCopies},
                                  {"copy_kernel", classes::kCopies},
                                  {"CUDA memcpy", classes::kCopies},
                                  {"FillFunctor", classes::kFills},
                                  {"CUDA memset", classes::kFills},
                                  {"elementwise_kernel", classes::kElementwise},
                                  {"reduce_kernel", classes::kOther},
                                  {"cub::", classes::kOther},
                                  {"scatter_gather", classes::kOther},
                                  {"Sort", classes::kOther}};

using Cells = std::vector<std::string>;

// Splits a line of CSV. A quoted cell may contain commas; "" in it is a quote.
Cells split_cells(std::string_view line) {
  Cells cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') cells.back() += line[i++];
      else quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else if (line[i] != '\r') {
      cells.back() += line[i];
    }
  }
  return cells;
}

std::optional<size_t> find_column(const Cells& header, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found != header.end()) return static_cast<size_t>(found - header.begin());
  }
  return std::nullopt;
}

double read_number(std::string text, const std::string& origin) {
  std::erase(text, ',');  // ncu separates thousands
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  MPX_CHECK(error == std::errc() && stop == text.data() + text.size() && number >= 0, "cost", origin,
            ": time = ", text, ": must be a number of at least 0; export the file again");
  return number;
}

// ncu writes the unit in a row without a kernel.
double unit_s(const std::string& unit, const std::string& origin) {
  if (unit == "ns" || unit == "nsecond") return 1e-9;
  if (unit == "us" || unit == "usecond") return 1e-6;
  MPX_CHECK(unit == "ms" || unit == "msecond", "cost", origin, ": unit = ", unit,
            ": must be ns, us or ms; export the file again");
  return 1e-3;
}

}  // namespace

std::vector<KernelTime> read_kernel_times(std::string_view csv, const std::string& origin) {
  std::vector<KernelTime> kernels;
  std::optional<size_t> name, time;
  double unit = 1e-9;
  while (!csv.empty()) {
    const size_t end = std::min(csv.find('\n'), csv.size());
    const Cells cells = split_cells(csv.substr(0, end));
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (!name || !time) {
      name = find_column(cells, {"Name", "Kernel Name", "Operation"});
      time = find_column(cells, {"Total Time (ns)", "gpu__time_duration.sum"});
    } else if (std::max(*name, *time) < cells.size()) {
      if (cells[*name].empty()) unit = unit_s(cells[*time], origin);
      else kernels.push_back({cells[*name], unit * read_number(cells[*time], origin)});
    }
  }
  MPX_CHECK(
      name && time, "cost", origin,
      ": must have a header with Name and Total Time (ns), or Kernel Name and gpu__time_duration.sum; export it "
      "by nsys stats --format csv --report cuda_gpu_kern_sum");
  return kernels;
}

std::string kernel_class(std::string_view kernel) {
  for (const KernelRow& row : kKernels) {
    if (kernel.find(row.part) != std::string_view::npos) return row.kernel_class;
  }
  return "";
}

}  // namespace metroplex::forecast
