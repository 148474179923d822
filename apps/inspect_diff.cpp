// metroplex inspect --diff: compares two checkpoints or Hugging Face directories tensor by tensor.
#include <cmath>
#include <iostream>

#include "apps/console.h"
#include "apps/inspect.h"
#include "apps/tensor_sources.h"
#include "checkpoint/compare.h"
#include "files/json_text.h"

namespace metroplex::apps {
namespace {

// JSON has no infinity.
OrderedJson number(double value) { return std::isfinite(value) ? OrderedJson(value) : OrderedJson("infinite"); }

OrderedJson form_json(const std::optional<files::TensorForm>& form) {
  if (!form) return nullptr;
  return {{"dtype", files::dtype_name(form->dtype)}, {"shape", form->shape}};
}

std::string dtypes(const checkpoint::TensorDifference& row) {
  if (!row.first || !row.second) return "";
  const std::string a = files::dtype_name(row.first->dtype), b = files::dtype_name(row.second->dtype);
  return a == b ? a : a + " and " + b;
}

bool same_values(const checkpoint::TensorDifference& row) {
  return row.problem.empty() && row.different_elements == 0;
}
bool same_dtype(const checkpoint::TensorDifference& row) {
  return !row.first || !row.second || row.first->dtype == row.second->dtype;
}

void print_row(const checkpoint::TensorDifference& row) {
  std::cout << "  " << files::printable(row.name) << " (" << files::printable(row.kind) << "): ";
  if (!row.problem.empty()) {
    std::cout << row.problem << '\n';
    return;
  }
  std::cout << checkpoint::describe_shape(row.first->shape) << " " << dtypes(row) << ", " << row.different_elements
            << " of " << row.elements << " elements differ, at most by " << row.max_absolute
            << "; norm of the difference " << row.norm << '\n';
}

OrderedJson row_json(const checkpoint::TensorDifference& row) {
  return {{"name", row.name},
          {"kind", row.kind},
          {"problem", row.problem},
          {"first", form_json(row.first)},
          {"second", form_json(row.second)},
          {"elements", row.elements},
          {"different_elements", row.different_elements},
          {"max_absolute", number(row.max_absolute)},
          {"norm", number(row.norm)}};
}

}  // namespace

int inspect_diff(files::FileSystem& disk, const InspectOptions& options) {
  const OpenedSource first = open_tensor_source(disk, options.path, options.iteration);
  const OpenedSource second =
      open_tensor_source(disk, options.other, is_hf_directory(disk, options.other) ? 0 : options.iteration);
  for (const OpenedSource* opened : {&first, &second}) {
    for (const std::string& problem : opened->problems) std::cerr << "skipped: " << problem << '\n';
  }
  // Other programs save other state, so only weights of their directories are compared.
  const bool weights_only = is_model_directory(disk, options.path) || is_model_directory(disk, options.other);
  OrderedJson rows = OrderedJson::array();
  int64_t different = 0, other_dtype = 0, left_out = 0;
  for (const auto& row : checkpoint::compare(*first.source, *second.source)) {
    if (weights_only && row.kind != "weight" && row.kind != "buffer") {
      ++left_out;
      continue;
    }
    different += same_values(row) ? 0 : 1;
    other_dtype += same_values(row) && !same_dtype(row) ? 1 : 0;
    rows.push_back(row_json(row));
    if (!options.json && !same_values(row)) print_row(row);
  }
  const std::string a = first.source->directory(), b = second.source->directory();
  if (options.json) {
    std::cout << json_text(OrderedJson{{"first", a}, {"second", b}, {"different", different}, {"tensors", rows}})
              << '\n';
    return different == 0 ? 0 : kInspectDifferent;
  }
  std::cout << a << " and " << b << ": ";
  if (different == 0) std::cout << "all " << rows.size() << " tensors are equal";
  else std::cout << different << " of " << rows.size() << " tensors differ";
  if (other_dtype > 0) std::cout << ", " << other_dtype << " equal tensors have two dtypes";
  if (left_out > 0) std::cout << "; " << left_out << " tensors other than weights were left out";
  std::cout << '\n';
  return different == 0 ? 0 : kInspectDifferent;
}

}  // namespace metroplex::apps
