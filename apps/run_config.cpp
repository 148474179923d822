#include "run_config.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/join.h"
#include "config/fields.h"
#include "config/load.h"
#include "files/file_system.h"
#include "apps/tensor_sources.h"
#include "foreign/model_directory.h"
#include "hf/adapters.h"
#include "config/validate.h"
#include "megatron/flags.h"
#include "megatron/launch_script.h"

namespace metroplex::apps {
namespace {

bool is_option(const std::string& word) { return word.size() > 2 && word.compare(0, 2, "--") == 0; }

// Reads the words of a command line; "--name=value" and "--name value" are equivalent.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}
  bool done() const { return at_ == words_.size(); }
  const std::string& peek() const { return words_[at_]; }
  std::string next() { return words_[at_++]; }
  size_t& at() { return at_; }
  const std::vector<std::string>& all() const { return words_; }
  // Returns the value of the option just read: after its '=', or the next word.
  std::string value(const std::string& option) {
    const size_t equals = option.find('=');
    if (equals != std::string::npos) return option.substr(equals + 1);
    MPX_CHECK(!done(), "config", option, " needs a value");
    return next();
  }

 private:
  const std::vector<std::string>& words_;
  size_t at_ = 0;
};

std::string without_sections(const std::string& yaml, const std::vector<std::string>& sections) {
  std::istringstream in(yaml);
  std::string out, line;
  bool keep = true;
  while (std::getline(in, line)) {
    if (!line.empty() && line[0] != ' ' && line[0] != '#') {
      keep = std::find(sections.begin(), sections.end(), line.substr(0, line.find(':'))) == sections.end();
    }
    if (keep) out += line + "\n";
  }
  return out;
}

// Whether the word is "section.key", and neither an option nor a file.
bool is_key(const std::string& word) {
  const bool file = word.ends_with(".yaml") || word.ends_with(".yml") || word.find('/') != std::string::npos;
  return !is_option(word) && !file && word.find('.') != std::string::npos;
}

std::string option_name(const std::string& option) { return option.substr(0, option.find('=')); }

// Short forms shared by all commands with ranks.
constexpr struct {
  const char* name;
  const char* key;
} kShortForms[] = {{"--nproc", "run.nproc"},
                   {"--nproc-per-node", "run.nproc"},
                   {"--nproc_per_node", "run.nproc"},
                   {"--backend", "run.backend"},
                   {"--tp", "parallel.tensor_model_parallel_size"},
                   {"--pp", "parallel.pipeline_model_parallel_size"},
                   {"--vpp", "parallel.virtual_pipeline_model_parallel_size"},
                   {"--cp", "parallel.context_parallel_size"},
                   {"--ep", "parallel.expert_model_parallel_size"},
                   {"--etp", "parallel.expert_tensor_parallel_size"}};

const char* find_short_form(const std::string& name) {
  const auto found = std::find_if(std::begin(kShortForms), std::end(kShortForms),
                                  [&](const auto& form) { return name == form.name; });
  return found == std::end(kShortForms) ? nullptr : found->key;
}

constexpr const char* kIgnore = "--ignore-unknown-flags";
// Internal option for child processes: PATH, the number of ARGUMENTS, and the words of megatron::to_words.
constexpr const char* kScriptRead = "--launch-script-read";

// Internal option for a configuration from a pipe, which can be read only once: NAME and its text.
constexpr const char* kConfigRead = "--config-read";
// Linux's limit of one argument (MAX_ARG_STRLEN), without the final zero.
constexpr size_t kMaxWordBytes = 128 * 1024 - 1;

void add_config(config::Draft& draft, const std::string& path, RunArguments& out) {
  std::error_code code;
  const std::filesystem::file_type type = std::filesystem::status(path, code).type();
  if (type != std::filesystem::file_type::fifo && type != std::filesystem::file_type::character) {
    draft.merge_file(path);
    out.arguments.insert(out.arguments.end(), {"--config", path});
    return;
  }
  const std::string text = config::read_config(path);
  MPX_CHECK(text.size() <= kMaxWordBytes, "config", path, " is a pipe with more than ", kMaxWordBytes,
            " bytes, which cannot be passed to other processes; write them to a file");
  draft.merge_yaml(text, path);
  out.arguments.insert(out.arguments.end(), {kConfigRead, path, text});
}

// Megatron flags of a command line, and data for the checks after the whole line is read.
struct MegatronFlags {
  megatron::RefusalMode refused = megatron::RefusalMode::kThrow;
  std::map<std::string, std::string> from_scripts;  // key -> the flag of a script that sets it, with its value
};

void add_megatron(config::Draft& draft, const megatron::Arguments& args, RunArguments& out) {
  draft.assign(args.assignments);
  out.notes.insert(out.notes.end(), args.notes.begin(), args.notes.end());
}

// Whether Megatron raises an error if this key has no effect.
bool raises_in_megatron(const std::string& key) {
  return key == "model.moe_pad_expert_input_to_capacity" || key == "model.moe_router_enable_expert_bias";
}

// Drops script flags that have no effect in this configuration. Megatron ignores them too.
void drop_without_effect(config::Draft& draft, const MegatronFlags& flags, RunArguments& out) {
  for (bool found = !flags.from_scripts.empty(); found;) {
    found = false;
    for (const config::Violation& violation : config::without_effect(draft.finish())) {
      const auto flag = flags.from_scripts.find(violation.key);
      if (flag == flags.from_scripts.end() || !draft.given().contains(violation.key)) continue;
      if (raises_in_megatron(violation.key)) continue;
      draft.retract(violation.key);
      out.notes.push_back(flag->second + ": ignored, as Megatron does: " + violation.key + " " + violation.rule);
      found = true;
    }
  }
}

// Drops keys of a checkpoint's config that have no effect with the keys given here.
void drop_dependents(config::Draft& draft, const std::vector<std::string>& overrides) {
  std::set<std::string> stated;
  for (const std::string& override : overrides) stated.insert(override.substr(0, override.find('=')));
  for (bool found = true; found;) {
    found = false;
    for (const config::Violation& violation : config::without_effect(draft.finish())) {
      if (stated.contains(violation.key) || !draft.given().contains(violation.key)) continue;
      draft.retract(violation.key);
      found = true;
    }
  }
}

bool is_yaml(const std::string& word) {
  return word.size() > 5 && (word.ends_with(".yaml") || word.ends_with(".yml"));
}

// pretrain_codegeex.py uses a different activation, and no dropout after the MLP.
void add_codegeex(config::Draft& draft, const megatron::LaunchScript& script, RunArguments& out) {
  if (!megatron::is_codegeex(script.program)) return;
  draft.assign(std::vector<std::string>{"model.family=codegeex", "model.activation=quick_gelu"});
  if (draft.finish().model.hidden_dropout > 0)
    out.notes.push_back(script.program +
                        " has no dropout after the MLP, but this run has; --hidden-dropout 0 is the same");
}

void take_script(config::Draft& draft, const std::string& path, const megatron::LaunchScript& script, int64_t given,
                 RunArguments& out, MegatronFlags& flags) {
  try {
    for (size_t i = 0; i < script.flags.size(); ++i) {
      MPX_CHECK(!script.flags[i].empty(), "config", "Megatron arguments: '", i == 0 ? "" : script.flags[i - 1],
                "' is followed by an empty argument; is a variable not set?");
    }
    const bool another = megatron::is_other_model(script.program);
    MPX_CHECK(!another || flags.refused == megatron::RefusalMode::kNote, "config", script.program,
              " does not train a GPT; write a script of ", "pretrain_gpt.py, or add ", kIgnore,
              " to train a GPT with its flags");
    if (another) out.notes.push_back("trains a GPT, not the model of " + script.program);
    const megatron::Arguments args =
        megatron::parse_arguments(script.flags, megatron::Form::kWholeCommand, flags.refused);
    add_megatron(draft, args, out);
    for (const auto& [key, flag] : args.given_by) flags.from_scripts[key] = flag;
    add_codegeex(draft, script, out);
  } catch (const base::Error& error) {
    const std::string text = base::message_of(error);
    const std::string hint = script.arguments_named <= given
                                 ? ""
                                 : base::concat("\n(", path, " reads $1 to $", script.arguments_named,
                                                " but received ", given, " arguments; write them after its name)");
    throw base::Error(error.room(), base::concat(path, ": ", text, hint));
  }
  out.script_ranks = script.ranks;
  out.unknown_script_ranks = script.unknown_ranks.empty() ? "" : path + ": " + script.unknown_ranks;
  if (!script.note.empty()) out.notes.push_back(path + ": " + script.note);
  std::error_code code;
  if (!script.folder.empty() && !std::filesystem::equivalent(script.folder, ".", code))
    out.notes.push_back(path + " changes to " + script.folder +
                        " before it starts; relative paths are resolved from the current directory");
}

// --from-megatron-args FILE [ARGUMENT ...] [-- ARGUMENT ...]: words after the file are the script's arguments.
void add_script(config::Draft& draft, const std::string& path, Words& words, RunArguments& out,
                MegatronFlags& flags) {
  std::vector<std::string> arguments;
  while (!words.done() && !is_option(words.peek()) && !is_yaml(words.peek()) && words.peek() != "--")
    arguments.push_back(words.next());
  if (!words.done() && words.peek() == "--") {
    for (words.next(); !words.done();) arguments.push_back(words.next());
  }
  const megatron::LaunchScript script = megatron::read_launch_script(path, arguments);
  out.arguments.insert(out.arguments.end(), {kScriptRead, path, std::to_string(arguments.size())});
  const std::vector<std::string> said = megatron::to_words(script);
  out.arguments.insert(out.arguments.end(), said.begin(), said.end());
  take_script(draft, path, script, static_cast<int64_t>(arguments.size()), out, flags);
}

void add_read_script(config::Draft& draft, Words& words, RunArguments& out, MegatronFlags& flags) {
  const std::string path = words.value(kScriptRead), given = words.value(kScriptRead);
  const megatron::LaunchScript script = megatron::from_words(words.all(), words.at());
  take_script(draft, path, script, std::atoll(given.c_str()), out, flags);
}

// The configurations of model.from and peft.from apply to keys without a value. A run.yaml sets all keys, so a
// resumed run does not need the directories.
void add_directory(config::Draft& draft) {
  config::Config config = draft.finish();
  const std::string directory = config.model.from, adapters = config.peft.from;
  const auto all_given = [&](const char* section) {
    const std::vector<config::Field> fields = config::fields(config);
    return std::all_of(fields.begin(), fields.end(), [&](const config::Field& field) {
      // run.yaml files of older versions lack the keys that are only exported.
      const bool exported = field.name == "special_token_ids" || field.name == "generation_config";
      return field.section != section || exported || draft.given().contains(field.key());
    });
  };
  files::PosixFileSystem disk;
  const auto add = [&](const std::vector<std::string>& settings) {
    for (const std::string& setting : settings) {
      if (!draft.given().contains(setting.substr(0, setting.find('=')))) draft.assign(setting);
    }
  };
  if (directory.empty()) return;
  const auto given = [&](const std::string& key) { return draft.given().contains(key); };
  if (!all_given("model")) add(foreign::read_settings(disk, directory, given));
  if (!adapters.empty() && !all_given("peft"))
    add(hf::read_adapter_settings(disk, adapters, directory_config(disk, directory).model));
}

}  // namespace

RunArguments parse_run_arguments(const std::vector<std::string>& arguments, const std::vector<CommandFlag>& own_flags,
                                 const std::string& base_yaml) {
  RunArguments out;
  config::Draft draft;
  if (!base_yaml.empty()) {
    draft.merge_yaml(without_sections(base_yaml, {"run", "parallel", "memory"}), "the checkpoint's config");
    draft.assign(base::concat("run.seed=", config::parse(base_yaml).run.seed));
  }
  MegatronFlags megatron_flags;
  if (std::find(arguments.begin(), arguments.end(), kIgnore) != arguments.end())
    megatron_flags.refused = megatron::RefusalMode::kNote;
  std::vector<std::string> overrides, flags, allowed;
  Words words(arguments);
  size_t begin = 0;
  const auto keep = [&] {  // copies the words since `begin` unchanged
    out.arguments.insert(out.arguments.end(), arguments.begin() + static_cast<std::ptrdiff_t>(begin),
                         arguments.begin() + static_cast<std::ptrdiff_t>(words.at()));
  };
  for (; !words.done(); begin = words.at()) {
    const std::string word = words.next();
    const std::string name = option_name(word);
    if (name == "--from-megatron-args") {
      add_script(draft, words.value(word), words, out, megatron_flags);
      continue;
    }
    const auto own =
        std::find_if(own_flags.begin(), own_flags.end(), [&](const CommandFlag& flag) { return flag.name == name; });
    if (own != own_flags.end() && own->given != nullptr) {
      MPX_CHECK(word == own->name, "config", own->name, " takes no value; remove it from '", word, "'");
      *own->given = true;
    } else if (own != own_flags.end()) {
      const std::string value = words.value(word);
      if (own->value != nullptr) *own->value = value;
      if (own->values != nullptr) own->values->push_back(value);
    } else if (name == "--help" || word == "-h") {
      out.help = true;
      if (!words.done() && !is_option(words.peek())) out.help_topic = words.next();
    } else if (name == "--trace" || name == kIgnore) {
      // main.cpp handles --trace; kIgnore was handled above
    } else if (const char* key = find_short_form(name)) {
      overrides.push_back(base::concat(key, "=", words.value(word)));
    } else if (name == "--config") {
      add_config(draft, words.value(word), out);
      continue;
    } else if (word == kConfigRead) {
      const std::string path = words.value(word);
      draft.merge_yaml(words.value(word), path);
    } else if (word == kScriptRead) {
      add_read_script(draft, words, out, megatron_flags);
    } else if (name == "--checkpoint.allow") {
      allowed.push_back(words.value(word));
      while (!words.done() && is_key(words.peek())) allowed.push_back(words.next());
    } else if (is_option(word) && name.find('.') != std::string::npos) {
      overrides.push_back(name.substr(2) + "=" + words.value(word));
    } else if (is_option(word)) {
      flags.push_back(word);
      while (!words.done() && !is_option(words.peek())) flags.push_back(words.next());
    } else {
      add_config(draft, word, out);
      continue;
    }
    keep();
  }
  if (!flags.empty()) {
    const auto args = megatron::parse_arguments(flags, megatron::Form::kSingleFlags, megatron_flags.refused);
    add_megatron(draft, args, out);
    for (const auto& [key, flag] : args.given_by) megatron_flags.from_scripts.erase(key);
  }
  if (!allowed.empty()) overrides.push_back("checkpoint.allow=" + base::join(allowed, ","));
  draft.assign(overrides);
  for (const std::string& override : overrides)
    megatron_flags.from_scripts.erase(override.substr(0, override.find('=')));
  if (!out.help) add_directory(draft);
  drop_without_effect(draft, megatron_flags, out);
  if (!base_yaml.empty()) drop_dependents(draft, overrides);
  out.config = draft.finish();
  return out;
}

config::Config checked_config(const config::Config& config, int64_t world_size, config::Use use) {
  config::check(config, world_size, use);
  return config::resolved(config, world_size);
}

}  // namespace metroplex::apps
