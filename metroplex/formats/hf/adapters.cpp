#include "hf/adapters.h"

#include <algorithm>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/join.h"
#include "config/module_pattern.h"
#include "files/convert_dtype.h"
#include "hf/decoder.h"
#include "hf/directory.h"

namespace metroplex::hf {
namespace {

constexpr const char* kConfigFile = "adapter_config.json";

// Whether one of their matrices has the rows of an adapter's output, in their order.
bool has_rows(const TensorPart& part, const config::AdapterBox& box) {
  const size_t dims = part.size.size();
  if (part.copy || part.shape.size() != 2 || dims < 2 || part.shape[0] != box.rows()) return false;
  const bool row_major = part.strides[dims - 1] == 1 && part.strides[dims - 2] == part.shape[1];
  return row_major && part.offset[dims - 2] % box.width == box.begin;
}

std::string without_suffix(const std::string& name) { return name.substr(0, name.rfind('.')); }

std::string read_config_text(files::FileSystem& disk, const std::string& directory) {
  const std::string path = files::join_path(directory, kConfigFile);
  if (disk.exists(path)) return disk.read(path);
  std::vector<std::string> named;
  for (const std::string& name : disk.is_directory(directory) ? disk.list(directory) : std::vector<std::string>()) {
    if (disk.exists(files::join_path(files::join_path(directory, name), kConfigFile))) named.push_back(name);
  }
  MPX_CHECK(named.empty(), "hf", "peft.from = ", directory, ": contains several adapters: ", base::join(named, ", "),
            "; name one, such as ", files::join_path(directory, named.empty() ? "" : named.front()));
  base::throw_error("hf", base::concat("peft.from = ", directory, ": has no ", kConfigFile,
                                       "; name a directory that save_pretrained of PEFT wrote"));
}

bool matches_whole(const std::string& expression, const std::string& module, const char* key) {
  try {
    return std::regex_match(module, std::regex(expression));
  } catch (const std::regex_error&) {
    base::throw_error("hf", base::concat(kConfigFile, ": ", key, " = ", expression,
                                         ": is not a regular expression of ECMAScript; write it as one"));
  }
}

// A file of PEFT. `theirs` of its functions names a module of transformers.
class AdapterConfig {
 public:
  explicit AdapterConfig(const std::string& text) : reader_(parse(text), kConfigFile) {
    const nlohmann::ordered_json ordered = nlohmann::ordered_json::parse(text);
    rank_ = reader_.integer("r", 8);
    alpha_ = reader_.number("lora_alpha", 8);
    reader_.require(rank_ > 0, "r", "a number above 0");
    reader_.require(alpha_ > 0, "lora_alpha", "a number above 0");
    ranks_ = read_numbers(ordered, "rank_pattern");
    alphas_ = read_numbers(ordered, "alpha_pattern");
    refuse_variants();
    reader_.refuse_unread("adapters of linear layers");
  }

  int64_t rank() const { return rank_; }
  double alpha() const { return alpha_; }
  bool use_dora() const { return reader_.flag("use_dora", false); }
  int64_t find_rank(const std::string& theirs) const {
    return static_cast<int64_t>(find_number(ranks_, theirs, static_cast<double>(rank_)));
  }
  double find_alpha(const std::string& theirs) const { return find_number(alphas_, theirs, alpha_); }
  const ConfigReader& reader() const { return reader_; }

  bool adapts(const std::string& theirs) const {
    if (selects("exclude_modules", theirs) || !selects("target_modules", theirs)) return false;
    const Json& layers = reader_.value("layers_to_transform");
    if (layers.is_null() || (layers.is_array() && layers.empty())) return true;
    std::smatch found;
    if (!std::regex_search(theirs, found, std::regex("\\.[^.]*\\.(\\d+)\\."))) return false;
    const int64_t layer = std::stoll(found[1].str());
    return layers.is_array() ? std::find(layers.begin(), layers.end(), Json(layer)) != layers.end() : layers == layer;
  }

  std::vector<std::string> saved_modules() const {
    const Json& names = reader_.value("modules_to_save");
    return names.is_array() ? names.get<std::vector<std::string>>() : std::vector<std::string>();
  }

 private:
  static Json parse(const std::string& text) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    MPX_CHECK(json.is_object(), "hf", kConfigFile, ": is not a JSON object; copy the file again");
    return json;
  }

  // Keys that change the adapters' function, with the values that leave it as config/peft.h defines it. Then the keys
  // without an effect on it.
  void refuse_variants() const {
    reader_.require(reader_.text("peft_type", "") == "LORA", "peft_type", "LORA");
    reader_.require(reader_.text("bias", "none") == "none", "bias", "none");
    for (const char* key : {"lora_bias", "use_qalora", "use_bdlora"})
      reader_.require(!reader_.flag(key, false), key, "false");
    for (const char* key : {"loftq_config", "target_parameters", "layers_pattern"})
      reader_.require(reader_.value(key).empty(), key, "null");
    const Json& init = reader_.value("init_lora_weights");
    const bool keeps_model =
        init.is_null() || init.is_boolean() || init == "gaussian" || init == "orthogonal" || init == "eva";
    reader_.require(keeps_model, "init_lora_weights",
                    "true, false, gaussian, orthogonal or eva; other values also change the model");
    for (const char* key : {"target_modules", "exclude_modules", "modules_to_save"}) {
      const Json& names = reader_.value(key);
      const bool list = names.is_array() &&
                        std::all_of(names.begin(), names.end(), [](const Json& name) { return name.is_string(); });
      const bool pattern = names.is_string() && key != std::string("modules_to_save");
      reader_.require(names.is_null() || list || pattern, key, "a list of module names");
    }
    reader_.ignore({"auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "fan_in_fan_out",
                    "inference_mode", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version",
                    "qalora_group_size", "revision", "task_type", "use_dora", "use_rslora"});
  }

  std::vector<config::ModuleNumber> read_numbers(const nlohmann::ordered_json& file, const char* key) const {
    std::vector<config::ModuleNumber> numbers;
    const Json& given = reader_.value(key);
    reader_.require(given.is_null() || given.is_object(), key, "an object of patterns and numbers");
    if (given.is_null()) return numbers;
    for (const auto& [pattern, number] : file.at(key).items()) {
      const bool fits = number.is_number_integer() || (number.is_number() && key != std::string("rank_pattern"));
      const auto entry =
          fits ? config::read_module_number(base::concat(pattern, "=", exact(number.get<double>()))) : std::nullopt;
      MPX_CHECK(
          entry.has_value(), "hf", kConfigFile, ": ", key, ": ", pattern, " = ", number.dump(),
          ": must be a regular expression of ECMAScript and a number above 0, whole for a rank; write it as one");
      numbers.push_back(*entry);
    }
    return numbers;
  }

  static double find_number(const std::vector<config::ModuleNumber>& numbers, const std::string& theirs,
                            double otherwise) {
    const auto found = std::find_if(numbers.begin(), numbers.end(), [&](const config::ModuleNumber& entry) {
      return config::matches_module(entry.pattern, theirs);
    });
    return found == numbers.end() ? otherwise : found->number;
  }

  bool selects(const char* key, const std::string& theirs) const {
    const Json& names = reader_.value(key);
    if (names.is_string()) return names == "all-linear" || matches_whole(names, theirs, key);
    return std::any_of(names.begin(), names.end(),
                       [&](const Json& name) { return config::is_target(name.get<std::string>(), theirs); });
  }

  ConfigReader reader_;
  int64_t rank_ = 0;
  double alpha_ = 0;
  std::vector<config::ModuleNumber> ranks_, alphas_;
};

// Returns the word of peft.lora_target_modules.
std::string target_name(const std::string& ours) {
  return (config::is_routed(ours) ? "experts." : "") + last_name(ours);
}

// Returns our parameter of a module that PEFT saved in full.
config::SavedModule find_saved_module(const config::Model& model, const std::string& theirs) {
  const std::vector<config::SavedModule> known = config::saved_modules(model);
  const auto found = std::find_if(known.begin(), known.end(), [&](const config::SavedModule& module) {
    return module.word == last_name(theirs);
  });
  MPX_CHECK(found != known.end(), "hf", kConfigFile, ": modules_to_save = ", theirs,
            ": must be embed_tokens or, without tied embeddings, lm_head; merge the adapters in PEFT");
  return *found;
}

// A tensor that a file of PEFT must have: one of ours, or that of an expert in a stack of ours.
struct Expected {
  std::string ours;
  Dims shape;
  int64_t expert = -1;
};

// By the name in the file.
std::map<std::string, Expected> expected_tensors(const config::Model& model, const AdapterConfig& config) {
  const std::vector<MappedTensor> mapped = family_for(model).tensors(model);
  std::map<std::string, Expected> expected;
  for (const AdapterModule& module : adapter_modules(model, mapped)) {
    if (!config.adapts(module.theirs)) continue;
    const int64_t rank = config.find_rank(module.theirs), out = module.out_features;
    const auto expect = [&](const char* suffix, const Dims& shape) {
      expected[kPeftPrefix + module.theirs + suffix] = {module.ours + suffix, shape, module.expert};
    };
    expect(config::kLoraA, {rank, module.in_features});
    expect(config::kLoraB, {out, rank});
    if (config.use_dora()) expect(config::kLoraMagnitude, {out});
  }
  for (const std::string& name : config.saved_modules()) {
    const std::string param = find_saved_module(model, name).param;
    const auto tensor = std::find_if(mapped.begin(), mapped.end(),
                                     [&](const MappedTensor& candidate) { return candidate.name == param; });
    expected[kPeftPrefix + tensor->parts.front().name] = {param, tensor->shape};
  }
  return expected;
}

std::string file_path(files::FileSystem& disk, const std::string& directory) {
  const std::string path = files::join_path(directory, "adapter_model.safetensors");
  MPX_CHECK(disk.exists(path), "checkpoint", "'", path,
            "' is missing; save the adapters in PEFT with safe_serialization=True");
  return path;
}

}  // namespace

std::string last_name(const std::string& module) { return module.substr(module.rfind('.') + 1); }

std::vector<AdapterModule> adapter_modules(const config::Model& model, const std::vector<MappedTensor>& mapped) {
  std::vector<AdapterModule> modules;
  std::set<std::string> seen;
  for (const MappedTensor& tensor : mapped) {
    if (tensor.name.starts_with("mtp.") || !tensor.name.ends_with(".weight")) continue;
    const std::string linear = without_suffix(tensor.name);
    for (const std::string& word : config::adapter_words(model)) {
      const std::string ours = config::adapter_module(linear, last_name(word));
      const auto place = config::adapter_place(model, ours);
      if (!place || place->linear != linear) continue;
      for (const TensorPart& part : tensor.parts) {
        if (!has_rows(part, place->box) || !seen.insert(part.name).second) continue;
        const int64_t expert = part.offset.size() == 3 ? part.offset[0] : -1;
        modules.push_back({ours, without_suffix(part.name), part.shape[1], part.shape[0], expert});
      }
    }
  }
  return modules;
}

std::map<std::string, double> shorten(const std::map<std::string, double>& modules, double otherwise,
                                      std::string (*end)(const std::string& module)) {
  std::map<std::string, std::set<double>> values;
  for (const auto& [module, value] : modules) values[end(module)].insert(value);
  std::map<std::string, double> shortened;
  for (const auto& [module, value] : modules) {
    const std::string name = end(module);
    if (value != otherwise) shortened[values.at(name).size() == 1 ? name : module] = value;
  }
  return shortened;
}

Settings read_adapter_settings(files::FileSystem& disk, const std::string& directory, const config::Model& model) {
  const AdapterConfig config(read_config_text(disk, directory));
  std::map<std::string, double> targets, ranks, alphas;
  for (const AdapterModule& module : adapter_modules(model, family_for(model).tensors(model))) {
    const auto put = [&](const char* key, std::map<std::string, double>& values, double value) {
      MPX_CHECK(values.emplace(module.ours, value).first->second == value, "hf", kConfigFile, ": ", key, ": ",
                module.theirs, " differs from another expert of its layer; write one value for all experts");
    };
    const bool adapted = config.adapts(module.theirs);
    put("target_modules", targets, adapted ? 1 : 0);
    if (!adapted) continue;
    put("rank_pattern", ranks, static_cast<double>(config.find_rank(module.theirs)));
    put("alpha_pattern", alphas, config.find_alpha(module.theirs));
  }
  MPX_CHECK(!ranks.empty(), "hf", "peft.from = ", directory, ": target_modules in ", kConfigFile,
            " select no layer that can have adapters; merge the adapters in PEFT");
  const auto list = [](const std::map<std::string, double>& values, bool with_values) {
    std::vector<std::string> entries;
    for (const auto& [name, value] : values) entries.push_back(with_values ? name + "=" + exact(value) : name);
    return base::join(entries, ",");
  };
  std::vector<std::string> saved;
  for (const std::string& name : config.saved_modules()) saved.emplace_back(find_saved_module(model, name).word);
  const ConfigReader& reader = config.reader();
  Settings settings{base::concat("peft.lora_rank=", config.rank()),
                    "peft.lora_alpha=" + exact(config.alpha()),
                    "peft.lora_dropout=" + exact(reader.number("lora_dropout", 0)),
                    base::concat("peft.use_rslora=", reader.flag("use_rslora", false) ? "true" : "false"),
                    base::concat("peft.use_dora=", config.use_dora() ? "true" : "false"),
                    "peft.lora_target_modules=" + list(shorten(targets, 0, target_name), false)};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) settings.push_back(base::concat("peft.", key, "=", value));
  };
  add("rank_pattern", list(shorten(ranks, static_cast<double>(config.rank())), true));
  add("alpha_pattern", list(shorten(alphas, config.alpha()), true));
  add("modules_to_save", base::join(saved, ","));
  return settings;
}

AdaptedWeights::AdaptedWeights(files::FileSystem& disk, const std::string& directory,
                               std::unique_ptr<TensorSource> base, const config::Model& model)
    : TensorSource(base->directory()),
      base_(std::move(base)),
      adapters_(directory),
      file_(disk.map(file_path(disk, directory)), file_path(disk, directory)) {
  add_adapters(model, read_config_text(disk, directory));
  for (const files::TensorForm& tensor : base_->tensors()) {
    if (!parts_.contains(tensor.name)) add(tensor);
  }
}

void AdaptedWeights::add_adapters(const config::Model& model, const std::string& config) {
  const std::map<std::string, Expected> expected = expected_tensors(model, AdapterConfig(config));
  std::vector<std::string> problems;
  std::map<std::string, files::TensorForm> forms;  // by our name
  for (const auto& [theirs, tensor] : expected) {
    const files::TensorInfo* const info = file_.find(theirs);
    if (info == nullptr) {
      problems.push_back(theirs + " is missing");
      continue;
    }
    const Dims stored(info->shape.begin(), info->shape.end());
    Dims shape = tensor.shape, offset(shape.size(), 0), size = shape;
    if (tensor.expert >= 0) {
      shape.insert(shape.begin(), model.num_moe_experts);
      offset.insert(offset.begin(), tensor.expert);
      size.insert(size.begin(), 1);
    }
    const files::TensorForm& form =
        forms.emplace(tensor.ours, files::TensorForm{tensor.ours, "weight", info->dtype, shape}).first->second;
    if (stored != tensor.shape)
      problems.push_back(base::concat(theirs, " has shape ", checkpoint::describe_shape(stored), ", but ",
                                      kConfigFile, " and the model require ",
                                      checkpoint::describe_shape(tensor.shape)));
    if (!files::is_float(info->dtype) || info->dtype != form.dtype)
      problems.push_back(base::concat(theirs, " is ", files::dtype_name(info->dtype),
                                      ", not F64, F32, BF16 or F16, or not as the other experts"));
    parts_[tensor.ours].push_back({file_.data(*info), checkpoint::box_piece(offset, size)});
  }
  // PEFT also stores the tied head of a saved embedding.
  const bool tied = model.tied() && parts_.contains(config::saved_modules(model).front().param);
  for (const files::TensorInfo& info : file_.tensors()) {
    const bool copy = tied && info.name == std::string(kPeftPrefix) + "lm_head.weight";
    if (!expected.contains(info.name) && !copy)
      problems.push_back(info.name + " does not belong to an adapter or to modules_to_save");
  }
  MPX_CHECK(problems.empty(), "checkpoint", "peft.from = ", adapters_, ": must have the tensors of ", kConfigFile,
            list_problems(problems), "\ncorrect the files, or merge the adapters in PEFT and use model.from alone");
  for (const auto& [name, form] : forms) add(form);
}

void AdaptedWeights::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  const files::TensorForm& form = tensors()[tensor];
  const auto own = parts_.find(form.name);
  if (own == parts_.end()) {
    base_->fill(
        {form.name, form.kind, form.shape, region.offset, region.size, form.dtype, data, region.begin, region.end});
    return;
  }
  for (const Part& part : own->second)
    checkpoint::copy_overlap(part.piece, part.data, region, data, files::dtype_bits(form.dtype) / 8);
}

}  // namespace metroplex::hf
