#include "step/replica_dump.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/launch_point.h"
#include "files/file_system.h"

namespace metroplex::step {
namespace {

nlohmann::json tensor_json(const device::Target& target, const at::Tensor& x) {
  const at::Tensor here = device::read_on_host(target, x.to(at::kLong).contiguous());
  const auto* values = here.const_data_ptr<int64_t>();
  if (here.dim() == 1) return std::vector<int64_t>(values, values + here.numel());
  nlohmann::json rows;
  for (int64_t row = 0; row < here.size(0); ++row)
    rows.push_back(std::vector<int64_t>(values + row * here.size(1), values + (row + 1) * here.size(1)));
  return rows;
}

}  // namespace

std::function<void(int64_t, const moe::ReplicaPlan&)> make_plan_writer(files::FileSystem& disk,
                                                                       const std::string& folder, int rank,
                                                                       const device::Target& target) {
  const std::string path = files::join_path(folder, base::concat("clones-", rank, ".jsonl"));
  const auto checked = [path](const std::function<void()>& work) {
    try {
      work();
    } catch (const base::Error& error) {
      base::throw_error(
          "files",
          base::concat(error.what(), " (model.moe_echo_dump_dir); check that its folder is writable and has space"));
    }
  };
  std::shared_ptr<files::WritableFile> file;
  checked([&] {
    disk.make_directories(folder);
    file = disk.append(path);
  });
  return [file, checked, target](int64_t layer, const moe::ReplicaPlan& plan) {
    const nlohmann::json line{{"layer", layer},
                              {"counts", tensor_json(target, plan.counts)},
                              {"owners", tensor_json(target, plan.owners)},
                              {"source_rows", tensor_json(target, plan.source_rows)},
                              {"loads", tensor_json(target, plan.loads)}};
    checked([&] { file->write(line.dump() + "\n"); });
  };
}

}  // namespace metroplex::step
