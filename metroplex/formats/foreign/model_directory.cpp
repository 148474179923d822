#include "foreign/model_directory.h"

#include "hf/adapters.h"
#include "hf/directory.h"
#include "mcore/settings.h"
#include "mcore/source.h"

namespace metroplex::foreign {

bool is_megatron(files::FileSystem& disk, const std::string& directory) {
  return !mcore::find_directory(disk, directory, 0).empty();
}

std::vector<std::string> read_settings(files::FileSystem& disk, const std::string& directory,
                                       const std::function<bool(const std::string& key)>& given) {
  const std::string megatron = mcore::find_directory(disk, directory, 0);
  if (megatron.empty()) return hf::read_settings(disk, directory);
  return mcore::read_settings(mcore::read_contents(disk, megatron), megatron, given);
}

bool has_weights(files::FileSystem& disk, const std::string& directory) {
  return is_megatron(disk, directory) || hf::has_weights(disk, directory);
}

std::unique_ptr<checkpoint::TensorSource> open_weights(files::FileSystem& disk, const std::string& directory,
                                                       const config::Model& model,
                                                       const std::function<bool(const std::string&)>& wanted) {
  const std::string megatron = mcore::find_directory(disk, directory, 0);
  if (megatron.empty()) return std::make_unique<hf::Source>(disk, directory, model, wanted);
  return std::make_unique<mcore::Source>(disk, megatron, model, wanted);
}

std::unique_ptr<checkpoint::TensorSource> open_run_weights(files::FileSystem& disk, const config::Config& config,
                                                           const std::function<bool(const std::string&)>& wanted) {
  auto weights = open_weights(disk, config.model.from, config.model, wanted);
  if (config.peft.from.empty()) return weights;
  return std::make_unique<hf::AdaptedWeights>(disk, config.peft.from, std::move(weights), config.model);
}

}  // namespace metroplex::foreign
