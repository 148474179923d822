#include "train/expert_loads.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "base/error.h"
#include "cuda/host_read.h"

namespace metroplex::train {
namespace {

nlohmann::json numbers(const cuda::Target& target, const at::Tensor& x) {
  const at::Tensor here = cuda::read_on_host(target, x.to(at::kLong).contiguous());
  const auto* values = here.const_data_ptr<int64_t>();
  if (here.dim() == 1) return std::vector<int64_t>(values, values + here.numel());
  nlohmann::json rows;
  for (int64_t row = 0; row < here.size(0); ++row)
    rows.push_back(std::vector<int64_t>(values + row * here.size(1), values + (row + 1) * here.size(1)));
  return rows;
}

}  // namespace

std::function<void(int64_t, const moe::ClonePlan&)> clone_dump(const std::string& folder, int rank,
                                                               const cuda::Target& target) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  const std::string path = folder + "/clones-" + std::to_string(rank) + ".jsonl";
  const auto file = std::make_shared<std::ofstream>(path, std::ios::app);
  const auto check = [path, file] {
    MPX_CHECK(file->good(), "files", "cannot write '", path,
              "' (model.moe_echo_dump_dir): is its folder writable, and is there room?");
  };
  check();
  return [file, check, target](int64_t layer, const moe::ClonePlan& plan) {
    *file << nlohmann::json{{"layer", layer},
                            {"counts", numbers(target, plan.counts)},
                            {"owners", numbers(target, plan.owners)},
                            {"source_rows", numbers(target, plan.source_rows)},
                            {"loads", numbers(target, plan.loads)}}
                 .dump()
          << std::endl;
    check();
  };
}

}  // namespace metroplex::train
