#include "apps/tensor_sources.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "foreign/model_directory.h"
#include "hf/adapters.h"
#include "hf/directory.h"
#include "mcore/contents.h"
#include "mcore/settings.h"
#include "mcore/source.h"
#include "text/tokenizer_files.h"

namespace metroplex::apps {

using files::join_path;
using Json = nlohmann::json;

bool is_hf_directory(files::FileSystem& disk, const std::string& path) {
  if (!disk.is_directory(path) || disk.exists(join_path(path, files::kManifestName))) return false;
  const std::vector<std::string> names = disk.list(path);
  return disk.exists(join_path(path, "config.json")) &&
         std::any_of(names.begin(), names.end(), [](const std::string& name) {
           return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
         });
}

config::Config directory_config(files::FileSystem& disk, const std::string& directory, const std::string& adapters) {
  std::vector<std::string> settings = foreign::read_settings(disk, directory);
  settings.push_back("model.from=" + directory);
  const auto make = [&] {
    const config::Config config = config::load("", settings);
    config::Config checked = config;
    checked.data.mock_data = true;  // the check requires a data setting
    config::check(checked, 1, config::Use::evaluation);
    return config::resolved(config, 1);
  };
  if (adapters.empty()) return make();
  for (const std::string& setting : hf::read_adapter_settings(disk, adapters, make().model))
    settings.push_back(setting);
  settings.push_back("peft.from=" + adapters);
  return make();
}

bool is_model_directory(files::FileSystem& disk, const std::string& path) {
  return is_hf_directory(disk, path) || foreign::is_megatron(disk, path);
}

std::string find_model_directory(files::FileSystem& disk, const std::string& path, int64_t iteration) {
  if (!is_hf_directory(disk, path)) return mcore::find_directory(disk, path, iteration);
  MPX_CHECK(iteration == 0, "checkpoint", "'", path, "' is a Hugging Face directory, which has no iteration ",
            iteration);
  return path;
}

OpenedSource open_tensor_source(files::FileSystem& disk, const std::string& path, int64_t iteration) {
  if (is_model_directory(disk, path)) {
    const std::string directory = find_model_directory(disk, path, iteration);
    return {foreign::open_weights(disk, directory, directory_config(disk, directory).model), {}};
  }
  checkpoint::Alone alone;
  checkpoint::Found found = checkpoint::open_path(disk, path, iteration, alone);
  MPX_CHECK(found.reader != nullptr, "checkpoint", "'", path, "' contains no checkpoint");
  return {std::move(found.reader), std::move(found.problems)};
}

// Whether every weight has moments of AdamW. Main parameters may be missing: they then begin as the weights.
static bool has_moments(const mcore::Source& source) {
  return source.contents().optimizer_steps > 0 &&
         std::all_of(source.tensors().begin(), source.tensors().end(), [&](const files::TensorForm& tensor) {
           return tensor.kind != "weight" || (source.find(tensor.name, "exp_avg") != nullptr &&
                                              source.find(tensor.name, "exp_avg_sq") != nullptr);
         });
}

void verify_model_directory(files::FileSystem& disk, const std::string& directory) {
  if (foreign::is_megatron(disk, directory))
    mcore::verify_contents(disk, directory, mcore::read_contents(disk, directory));
}

std::vector<std::string> conversion_notes(files::FileSystem& disk, const std::string& directory) {
  if (is_hf_directory(disk, directory)) return hf::directory_notes(disk, directory);
  if (!foreign::is_megatron(disk, directory)) return {};
  const mcore::Source source(disk, directory, directory_config(disk, directory).model);
  if (source.contents().optimizer_steps == 0 || has_moments(source)) return {};
  const std::string& problem = source.contents().state_problem;
  return {base::concat("'", directory, "': the optimizer state is not converted, because ",
                       problem.empty() ? "it does not have the shapes of the model" : problem,
                       "; save the checkpoint with --ckpt-format torch_dist --dist-ckpt-optim-fully-reshardable")};
}

// A run resumes from a checkpoint of Megatron-LM; without its optimizer state, with checkpoint.no_load_optim.
static void add_progress(const mcore::Source& source, config::Config& config, checkpoint::RunState& state) {
  const mcore::Contents& contents = source.contents();
  config.run.seed = mcore::integer_argument(contents.arguments, "seed", config.run.seed);
  state.config_yaml = config::dump(config);
  state.iteration = contents.iteration;
  state.consumed_samples = mcore::consumed_samples(contents);
  Json extra = Json::parse(state.extra);
  extra["optimizer_steps"] = has_moments(source) ? contents.optimizer_steps : 0;
  extra["scheduled_samples"] = contents.scheduled_samples < 0 ? state.consumed_samples : contents.scheduled_samples;
  extra["seed"] = config.run.seed;
  state.extra = extra.dump();
}

checkpoint::RunState directory_run_state(files::FileSystem& disk, const std::string& directory,
                                         const std::string& adapters) {
  config::Config config = directory_config(disk, directory, adapters);
  config.model.from.clear();
  config.peft.from.clear();
  checkpoint::RunState state;
  state.config_yaml = config::dump(config);
  state.parent = "";
  Json extra{{"optimizer_steps", 0}, {"skipped_iterations", 0}, {"scheduled_samples", 0}, {"seed", config.run.seed}};
  if (!config.data.tokenizer_model.empty()) {
    const text::TokenizerFiles tokenizer =
        text::read_tokenizer_files(config.data.tokenizer_type.text(), config.data.tokenizer_model, "", "");
    std::vector<std::string> names;
    for (const auto& [name, bytes] : tokenizer.files) {
      names.push_back(name);
      state.side_files.push_back({name, bytes});
    }
    extra["tokenizer"] = {{"type", tokenizer.type}, {"checksum", tokenizer.checksum}, {"files", names}};
  }
  state.extra = extra.dump();
  if (foreign::is_megatron(disk, directory))
    add_progress(mcore::Source(disk, directory, config.model), config, state);
  return state;
}

checkpoint::RunState saved_run_state(files::FileSystem& disk, const checkpoint::Reader& reader) {
  const files::Manifest& manifest = reader.manifest();
  checkpoint::RunState state{manifest.iteration, manifest.consumed_samples, manifest.config_yaml, manifest.extra, ""};
  std::vector<bool> holds_pieces(manifest.files.size());
  for (const files::ManifestTensor& tensor : manifest.tensors) {
    for (const files::ManifestPiece& piece : tensor.pieces) holds_pieces[static_cast<size_t>(piece.file)] = true;
  }
  for (size_t i = 0; i < holds_pieces.size(); ++i) {
    const std::string& name = manifest.files[i].name;
    if (!holds_pieces[i]) state.side_files.push_back({name, disk.read(join_path(reader.directory(), name))});
  }
  return state;
}

}  // namespace metroplex::apps
