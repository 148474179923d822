#include "config/load.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "config/cuda_graph.h"
#include "config/family.h"
#include "config/fields.h"

namespace metroplex::config {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxProblems = 20;

static const Field* find(const std::vector<Field>& list, const std::string& key) {
  for (const Field& field : list) {
    if (field.key() == key) return &field;
  }
  return nullptr;
}

static std::string shortened(const std::string& text) { return text.size() > 60 ? text.substr(0, 57) + "..." : text; }

static std::string unknown_key(const std::string& key, const std::vector<Field>& list) {
  const std::string name = key.substr(key.find('.') + 1);
  std::string problem = "unknown key '" + shortened(key) + "'";
  for (const Field& field : list) {
    if (field.name == name && key.size() < 200) return problem + "; did you mean '" + field.key() + "'?";
  }
  std::vector<std::string> keys, names;
  for (const Field& field : list) {
    keys.push_back(field.key());
    names.push_back(field.name);
  }
  if (key.size() < 200) {
    std::string nearest = base::nearest_name(key, keys);
    if (const std::string by_name = base::nearest_name(name, names);
        !by_name.empty() &&
        (nearest.empty() || base::edit_distance(key, nearest) > base::edit_distance(name, by_name))) {
      for (const Field& field : list) {
        if (field.name == by_name) nearest = field.key();
      }
    }
    if (!nearest.empty()) return problem + "; did you mean '" + nearest + "'?";
  }
  return problem + "; --help all lists every key";
}

static std::string wrong_type(const Field& field, const std::string& value) {
  const std::string problem = field.key() + " = " + shortened(value) + ": expected " + expectation(field);
  const std::string nearest = value.size() < 200 ? base::nearest_name(value, field.limits.choices) : "";
  return nearest.empty() ? problem : problem + "; did you mean " + nearest + "?";
}

static std::string yaml_text(const YAML::Node& node) {
  if (node.IsNull()) return "nothing";
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a map";
  return node.Tag() == "!" ? quoted(node.Scalar()) : node.Scalar();
}

// Returns "" or the problem. Quoted text is a string only: "3" is not an integer.
static std::string assign_yaml(const Field& field, const YAML::Node& node) {
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&field.member)) {
    std::vector<std::string> items;
    if (!node.IsSequence()) return wrong_type(field, yaml_text(node)) + " such as [a, b]";
    for (const auto& item : node) {
      if (!item.IsScalar()) return wrong_type(field, "a list that holds " + yaml_text(item)) + " of plain values";
      items.push_back(item.Scalar());
    }
    **list = std::move(items);
    return "";
  }
  const bool text =
      std::holds_alternative<std::string*>(field.member) || std::holds_alternative<ChoiceMember>(field.member);
  if (!node.IsScalar() || (!text && node.Tag() == "!")) return wrong_type(field, yaml_text(node));
  return assign_scalar(field, node.Scalar()) ? "" : wrong_type(field, yaml_text(node));
}

// Returns a scalar, or the items of a list of scalars; an empty word for anything else.
static std::vector<std::string> plain_values(const YAML::Node& node) {
  if (node.IsScalar()) return {node.Scalar()};
  std::vector<std::string> values;
  for (const auto& item : node) values.push_back(node.IsSequence() && item.IsScalar() ? item.Scalar() : "");
  return values;
}

namespace {

// Obsolete keys; accepted only with their default value.
bool is_retired(const std::string& key, const YAML::Node& value) {
  static const std::map<std::string, std::string> kDefaults{{"model.num_tokentypes", "0"},
                                                            {"parallel.variable_seq_lengths", "false"},
                                                            {"model.moe_static_buffer_exchange", "equal_capacity"}};
  const auto found = kDefaults.find(key);
  return found != kDefaults.end() && value.IsScalar() && value.Scalar() == found->second;
}

class YamlReader {
 public:
  YamlReader(Config& config, std::set<std::string>& given) : list_(fields(config)), given_(given) {}

  void read(const YAML::Node& document) {
    if (document.IsNull() || !document.IsDefined()) return;
    if (!document.IsMap()) {
      problems_.push_back("expected sections (run:, model:, ...), got " + yaml_text(document));
      return;
    }
    for (const auto& entry : document) {
      if (!full()) read_section(entry.first, entry.second);
    }
  }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  // Limits the output for a file that is not a configuration.
  bool full() const { return problems_.size() >= kMaxProblems; }

  void problem(const YAML::Node& where, const std::string& what) {
    problems_.push_back("line " + std::to_string(where.Mark().line + 1) + ": " + what);
  }

  void read_section(const YAML::Node& name, const YAML::Node& body) {
    std::vector<std::string> names;
    for (const SectionHelp& section : sections()) names.push_back(section.name);
    if (!name.IsScalar()) return problem(name, "a section's name must be a word");
    const std::string section = name.Scalar();
    if (std::find(names.begin(), names.end(), section) == names.end()) {
      if (const std::string home = find_section(section); !home.empty())
        return problem(name, "'" + section + "' is a key of section " + home + "; write it under " + home + ":");
      const std::string nearest = section.size() < 200 ? base::nearest_name(section, names) : "";
      return problem(name,
                     "unknown section '" + shortened(section) + "'; " +
                         (nearest.empty() ? "there are " + section_names() : "did you mean '" + nearest + "'?"));
    }
    if (!seen_.insert(section).second) return problem(name, "section '" + section + "' is written twice");
    if (body.IsNull()) return;
    if (!body.IsMap()) return problem(body, "section '" + section + "' must hold keys, not " + yaml_text(body));
    for (const auto& entry : body) {
      if (!full()) read_key(section, entry.first, entry.second);
    }
  }

  void read_key(const std::string& section, const YAML::Node& name, const YAML::Node& value) {
    if (!name.IsScalar()) return problem(name, "a key of section '" + section + "' must be a word");
    const std::string key = section + "." + name.Scalar();
    const Field* field = find(list_, key);
    if (field == nullptr && is_retired(key, value)) return;
    if (const NewerKeys newer = newer_keys(key, plain_values(value)); newer.known) {
      if (!newer.problem.empty()) return problem(name, newer.problem);
      for (const auto& [today, text] : newer.keys) set_key(name, today, YAML::Load(text));
      return;
    }
    set_key(name, key, value);
  }

  void set_key(const YAML::Node& name, const std::string& key, const YAML::Node& value) {
    const Field* field = find(list_, key);
    if (field == nullptr) return problem(name, unknown_key(key, list_));
    if (!seen_.insert(key).second) return problem(name, "key '" + key + "' is written twice");
    if (const std::string wrong = assign_yaml(*field, value); !wrong.empty()) return problem(name, wrong);
    given_.insert(key);
  }

  std::string find_section(const std::string& name) const {
    for (const Field& field : list_) {
      if (field.name == name || newer_keys(field.section + "." + name, {}).known) return field.section;
    }
    return "";
  }

  std::vector<Field> list_;
  std::set<std::string>& given_;
  std::set<std::string> seen_;
  std::vector<std::string> problems_;
};

}  // namespace

static void refuse(const std::string& source, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text = source + ":";
  for (const auto& problem : problems) text += (problems.size() == 1 ? " " : "\n  ") + problem;
  base::throw_error("config", text);
}

namespace {

class Deaf final : public YAML::EventHandler {
  using Mark = YAML::Mark;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

// yaml-cpp 0.7 does not return from LoadAll if a document begins with a comma, because it finds endless empty
// documents.
static void check_one_document(const std::string& text, const std::string& source) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Deaf handler;
  if (!parser.HandleNextDocument(handler)) return;
  MPX_CHECK(!parser.HandleNextDocument(handler), "config", source,
            ": holds more than one document; write one, without ---, and no comma in front");
}

void Draft::merge_yaml(const std::string& text, const std::string& source) {
  MPX_CHECK(text.size() <= kMaxFileBytes, "config", source, ": ", text.size(),
            " bytes are too large for a configuration (limit ", kMaxFileBytes, ")");
  // Works on a copy, so that rejected text changes nothing.
  Draft next = *this;
  YamlReader reader(next.config_, next.given_);
  try {
    check_one_document(text, source);
    reader.read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    base::throw_error("config", base::concat(source, ": line ", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  refuse(source, reader.problems());
  *this = std::move(next);
}

std::string read_config(const std::string& path) {
  std::error_code code;
  MPX_CHECK(!std::filesystem::is_directory(path, code), "config", path, " is a folder; name a YAML file");
  std::ifstream stream(path, std::ios::binary);
  MPX_CHECK(stream.good(), "config", "cannot read the configuration ", path, "; check the path");
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  return text;
}

void Draft::merge_file(const std::string& path) { merge_yaml(read_config(path), path); }

static std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const size_t begin = item.find_first_not_of(' ');
    if (begin != std::string::npos) items.push_back(item.substr(begin, item.find_last_not_of(' ') - begin + 1));
  }
  return items;
}

static std::vector<std::string> split_list(const std::string& text) {
  const bool brackets = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  return split_commas(brackets ? text.substr(1, text.size() - 2) : text);
}

void Draft::assign(const std::string& assignment) {
  const std::string body = assignment.rfind("--", 0) == 0 ? assignment.substr(2) : assignment;
  const size_t equals = body.find('=');
  MPX_CHECK(equals != std::string::npos, "config", "'", shortened(assignment),
            "' has no '='; write --section.key=value, such as --model.num_layers=8");
  const std::string key = body.substr(0, equals), value = body.substr(equals + 1);
  if (const NewerKeys newer = newer_keys(key, split_list(value)); newer.known) {
    MPX_CHECK(newer.problem.empty(), "config", newer.problem);
    for (const auto& [today, text] : newer.keys) assign(today + "=" + text);
    return;
  }
  const std::vector<Field> list = fields(config_);
  const Field* field = find(list, key);
  MPX_CHECK(field != nullptr, "config", unknown_key(key, list));
  auto* const* items = std::get_if<std::vector<std::string>*>(&field->member);
  if (items == nullptr) {
    MPX_CHECK(assign_scalar(*field, value), "config", wrong_type(*field, value.empty() ? "nothing" : value));
  } else if (!value.empty() && value[0] == '[') {
    std::string wrong;
    try {
      wrong = assign_yaml(*field, YAML::Load(value));
    } catch (const YAML::Exception&) { wrong = wrong_type(*field, value) + " such as [a, b]"; }
    MPX_CHECK(wrong.empty(), "config", wrong);
  } else {
    **items = split_commas(value);
  }
  given_.insert(key);
}

void Draft::assign(const std::vector<std::string>& assignments) {
  Draft next = *this;
  std::vector<std::string> problems;
  for (const auto& assignment : assignments) {
    try {
      next.assign(assignment);
    } catch (const base::Error& error) {
      problems.push_back(std::string(error.what()).substr(std::string("[config] ").size()));
    }
  }
  refuse("command line", problems);
  *this = std::move(next);
}

void Draft::retract(const std::string& key) {
  Config defaults;
  const std::vector<Field> list = fields(config_), standard = fields(defaults);
  const Field *field = find(list, key), *from = find(standard, key);
  MPX_ASSERT(field != nullptr, key);
  copy_value(*field, *from);
  given_.erase(key);
}

Config Draft::finish() const {
  Config config = config_;
  const std::vector<Field> list = fields(config);
  const Family* family = find_family(config_.model.family);  // check() rejects an unknown family
  for (const Preset& preset : family == nullptr ? std::vector<Preset>{} : family->presets) {
    if (given_.contains(preset.key)) continue;
    const Field* field = find(list, preset.key);
    MPX_ASSERT(field != nullptr && assign_scalar(*field, preset.value), "preset ", preset.key);
  }
  // As in Megatron, where 0 and unset differ.
  if (config.optim.decoupled_lr > 0 && !given_.contains("optim.decoupled_min_lr"))
    config.optim.decoupled_min_lr = config.optim.min_lr;
  return config;
}

Config load(const std::string& path, const std::vector<std::string>& overrides) {
  Draft draft;
  if (!path.empty()) draft.merge_file(path);
  draft.assign(overrides);
  return draft.finish();
}

Config parse(const std::string& yaml, const std::vector<std::string>& overrides) {
  Draft draft;
  draft.merge_yaml(yaml, "configuration");
  draft.assign(overrides);
  return draft.finish();
}

Config parse_saved(const std::string& yaml) {
  Config config;
  try {
    const YAML::Node document = YAML::Load(yaml);
    MPX_CHECK(document.IsMap() || document.IsNull(), "config", "the configuration of the checkpoint has no sections");
    for (const Field& field : fields(config)) {
      if (!document.IsMap() || !document[field.section] || !document[field.section].IsMap()) continue;
      const YAML::Node value = document[field.section][field.name];
      if (value) assign_yaml(field, value);
    }
  } catch (const YAML::Exception& error) {
    base::throw_error("config", base::concat("the configuration of the checkpoint is not YAML: ", error.msg));
  }
  return config;
}

std::string dump(const Config& config) {
  Config copy = config;
  std::string out, section;
  for (const Field& field : fields(copy)) {
    if (field.section != section) out += (section = field.section) + ":\n";
    out += "  " + field.name + ": " + to_yaml(field) + "\n";
  }
  return out;
}

std::vector<std::string> differences(const Config& a, const Config& b) {
  Config first = a, second = b;
  const std::vector<Field> left = fields(first), right = fields(second);
  std::vector<std::string> keys;
  for (size_t i = 0; i < left.size(); ++i) {
    if (to_yaml(left[i]) != to_yaml(right[i])) keys.push_back(left[i].key());
  }
  return keys;
}

}  // namespace metroplex::config
