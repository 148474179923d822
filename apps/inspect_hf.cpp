// metroplex inspect for a Hugging Face directory. It has no checksums: --verify checks its files for consistency with
// each other and with config.json.
#include <iostream>
#include <map>
#include <set>

#include "apps/inspect.h"
#include "apps/tensor_sources.h"
#include "base/bytes_text.h"
#include "base/error.h"
#include "files/safetensors.h"
#include "hf/directory.h"

namespace metroplex::apps {
namespace {

using files::join_path;

constexpr const char* kIndex = "model.safetensors.index.json";

template <class Work>
void attempt(std::vector<std::string>& problems, const Work& work) {
  try {
    work();
  } catch (const base::Error& error) {
    problems.push_back(error.what());
  } catch (const OrderedJson::exception& error) { problems.push_back(error.what()); }
}

struct ListedTensors {
  hf::Quantization quantization;
  OrderedJson files = OrderedJson::array(), tensors = OrderedJson::array();
  std::map<std::string, std::string> file_of;  // tensor -> file
  uint64_t bytes = 0, tensor_bytes = 0, parameters = 0;
};

void list_file(files::FileSystem& disk, const std::string& directory, const std::string& name, ListedTensors& listed,
               std::vector<std::string>& problems) {
  const std::string path = join_path(directory, name);
  const files::Bytes bytes = disk.map(path);
  const files::SafetensorsFile file(bytes, path);
  listed.files.push_back({{"name", name}, {"bytes", bytes.size}});
  listed.bytes += bytes.size;
  for (const files::TensorInfo& tensor : file.tensors()) {
    if (!listed.file_of.emplace(tensor.name, name).second)
      problems.push_back(base::concat("'", path, "': ", tensor.name, " is also in ", listed.file_of[tensor.name]));
    listed.parameters += listed.quantization.count_weights(tensor);
    listed.tensor_bytes += tensor.end - tensor.begin;
    listed.tensors.push_back({{"name", tensor.name},
                              {"kind", ""},
                              {"dtype", files::dtype_name(tensor.dtype)},
                              {"shape", tensor.shape},
                              {"file", name}});
  }
}

void check_index(files::FileSystem& disk, const std::string& path, const ListedTensors& listed,
                 std::vector<std::string>& problems) {
  const OrderedJson index = OrderedJson::parse(disk.read(path));
  std::set<std::string> named;
  for (const auto& [tensor, file] : index.at("weight_map").items()) {
    const auto found = listed.file_of.find(tensor);
    named.insert(tensor);
    if (found == listed.file_of.end() || OrderedJson(found->second) != file)
      problems.push_back(base::concat(
          "'", path, "': weight_map puts ", tensor, " in ", file.dump(), ", ",
          found == listed.file_of.end() ? "which does not contain it" : "but it is in " + found->second));
  }
  for (const auto& [tensor, file] : listed.file_of) {
    if (named.count(tensor) == 0)
      problems.push_back(base::concat("'", path, "': weight_map has no entry for ", tensor, " of ", file));
  }
  const OrderedJson size = index.value("metadata", OrderedJson::object()).value("total_size", OrderedJson());
  if (size.is_number_integer() && size.get<uint64_t>() != listed.tensor_bytes)
    problems.push_back(base::concat("'", path, "': metadata.total_size = ", size.dump(), ", but the tensors have ",
                                    listed.tensor_bytes, " bytes"));
}

void print(const OrderedJson& json, bool with_config) {
  std::cout << json.at("path").get<std::string>() << ": Hugging Face directory, "
            << (json.at("model_type").is_null() ? "no model_type" : json.at("model_type").get<std::string>()) << ", "
            << json.at("parameters") << " parameters, " << json.at("tensors").size() << " tensors, "
            << json.at("files").size() << " files, " << base::bytes_text(json.at("bytes").get<double>()) << '\n';
  if (json.contains("quantization"))
    std::cout << "  quantized: " << json.at("quantization").get<std::string>() << '\n';
  for (const OrderedJson& file : json.at("files"))
    std::cout << "  " << file.at("name").get<std::string>() << "  "
              << base::bytes_text(file.at("bytes").get<double>()) << '\n';
  print_tensors(json.at("tensors"));
  if (!json.at("not_built").is_null())
    std::cout << "not a supported model: " << json.at("not_built").get<std::string>() << '\n';
  if (!with_config || json.at("settings").empty()) return;
  std::cout << "settings:\n";
  for (const OrderedJson& setting : json.at("settings")) std::cout << "  " << setting.get<std::string>() << '\n';
}

}  // namespace

int inspect_hf(files::FileSystem& disk, const InspectOptions& options) {
  const std::string& path = options.path;
  std::vector<std::string> problems, not_built;
  ListedTensors listed;
  attempt(not_built, [&] { listed.quantization = hf::read_quantization(disk, path); });
  for (const std::string& name : disk.list(path)) {
    if (name.ends_with(".safetensors")) attempt(problems, [&] { list_file(disk, path, name, listed, problems); });
  }
  const std::string index = join_path(path, kIndex);
  if (disk.exists(index)) attempt(problems, [&] { check_index(disk, index, listed, problems); });
  std::vector<std::string> settings;
  OrderedJson model_type;
  attempt(problems, [&] {
    const auto config = OrderedJson::parse(disk.read(join_path(path, "config.json")));
    if (config.is_object() && config.contains("model_type")) model_type = config.at("model_type").get<std::string>();
  });
  attempt(not_built, [&] {
    settings = hf::read_settings(disk, path);
    const config::Config config = directory_config(disk, path);
    if (options.verify && problems.empty()) attempt(problems, [&] { hf::Source(disk, path, config.model); });
  });
  OrderedJson json{
      {"kind", "hugging_face"},    {"path", path},
      {"model_type", model_type},  {"parameters", listed.parameters},
      {"files", listed.files},     {"bytes", listed.bytes},
      {"tensors", listed.tensors}, {"not_built", not_built.empty() ? OrderedJson() : OrderedJson(not_built.front())}};
  if (listed.quantization.is_used()) json["quantization"] = listed.quantization.to_string();
  if (options.config) json["settings"] = settings;
  if (!options.json) print(json, options.config);
  if (!options.verify && !options.json) {
    for (const std::string& problem : problems) std::cout << "DAMAGED  " << problem << '\n';
  }
  return report_damage(options, std::move(json), problems,
                       not_built.empty()
                           ? "every tensor that config.json requires is present; the format has no checksums"
                           : "every safetensors file is readable; the format has no checksums");
}

}  // namespace metroplex::apps
