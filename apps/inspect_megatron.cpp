// metroplex inspect for a checkpoint of Megatron-LM: lists the tensors of its model under Megatron's names.
#include <iostream>

#include "apps/inspect.h"
#include "apps/tensor_sources.h"
#include "base/error.h"
#include "files/json_text.h"
#include "mcore/settings.h"
#include "mcore/source.h"

namespace metroplex::apps {
namespace {

OrderedJson list_tensors(const mcore::Contents& contents) {
  OrderedJson tensors = OrderedJson::array();
  for (const auto& [name, tensor] : contents.tensors) {
    const size_t slash = name.find('/');  // KIND/NAME of optimizer state
    tensors.push_back({{"name", name.substr(slash + 1)},
                       {"kind", slash == std::string::npos ? "weight" : name.substr(0, slash)},
                       {"dtype", files::dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"pieces", tensor.chunks.size()}});
  }
  return tensors;
}

void print_megatron(const OrderedJson& json, bool with_config) {
  std::cout << json.at("path").get<std::string>() << ": checkpoint of Megatron-LM, format "
            << json.at("format").get<std::string>() << ", iteration " << json.at("iteration") << ", "
            << json.at("consumed_samples") << " samples consumed, " << json.at("tensors").size() << " tensors";
  if (json.at("other_tensors") > 0) std::cout << ", " << json.at("other_tensors") << " of other state";
  std::cout << '\n';
  print_tensors(json.at("tensors"));
  if (!json.at("not_built").is_null())
    std::cout << "not a complete or supported model: " << json.at("not_built").get<std::string>() << '\n';
  if (!with_config || !json.contains("settings")) return;
  std::cout << "settings:\n";
  for (const OrderedJson& setting : json.at("settings"))
    std::cout << "  " << files::printable(setting.get<std::string>()) << '\n';
}

// Calls `work` and returns the message of its error; "" if there is none.
template <class Work>
std::string find_problem(const Work& work) {
  try {
    work();
  } catch (const base::Error& error) { return error.what(); }
  return "";
}

}  // namespace

int inspect_megatron(files::FileSystem& disk, const InspectOptions& options) {
  const std::string directory = find_model_directory(disk, options.path, options.iteration);
  const mcore::Contents contents = mcore::read_contents(disk, directory);
  OrderedJson json{{"kind", "megatron"},
                   {"path", directory},
                   {"format", contents.format},
                   {"iteration", contents.iteration},
                   {"consumed_samples", mcore::consumed_samples(contents)},
                   {"tensors", list_tensors(contents)},
                   {"other_tensors", contents.other_tensors}};
  const std::string not_built = find_problem([&] {
    if (options.config) json["settings"] = mcore::read_settings(contents, directory);
    mcore::Source(disk, directory, directory_config(disk, directory).model);
  });
  json["not_built"] = not_built.empty() ? OrderedJson() : OrderedJson(not_built);
  std::vector<std::string> problems;
  if (options.verify) {
    if (!contents.arguments.empty()) problems.push_back(not_built);  // without args, the model is not known
    problems.push_back(find_problem([&] { mcore::verify_contents(disk, directory, contents); }));
    std::erase(problems, "");
  }
  if (!options.json) print_megatron(json, options.config);
  return report_damage(options, std::move(json), problems);
}

}  // namespace metroplex::apps
