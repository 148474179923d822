#include "run_config.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "config/load.h"
#include "config/megatron_flags.h"
#include "config/validate.h"

namespace metroplex::apps {
namespace {

bool is_option(const std::string& word) { return word.size() > 2 && word.compare(0, 2, "--") == 0; }

// Walks the words of a command line; "--name=value" and "--name value" are the same.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}
  bool done() const { return at_ == words_.size(); }
  const std::string& peek() const { return words_[at_]; }
  std::string next() { return words_[at_++]; }
  // Value of the option just read: after its '=', or the next word.
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

// Drops top-level sections from the YAML that config::dump writes.
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

// "section.key", and neither an option nor a file.
bool is_key(const std::string& word) {
  const bool file = word.ends_with(".yaml") || word.ends_with(".yml") || word.find('/') != std::string::npos;
  return !is_option(word) && !file && word.find('.') != std::string::npos;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

std::string name_of(const std::string& option) { return option.substr(0, option.find('=')); }

void add_megatron(config::Draft& draft, const config::MegatronArgs& args, RunArguments& out, bool strict) {
  draft.assign(args.assignments);
  for (const std::string& flag : args.without_effect)
    out.notes.push_back(flag + " changes nothing here: it is always so");
  if (strict && !args.not_known_yet.empty()) {
    std::string list;
    for (const std::string& flag : args.not_known_yet) list += "\n  " + flag;
    throw base::Error("config", "these options are not known (metroplex train --help lists what is):" + list);
  }
  for (const std::string& flag : args.not_known_yet) out.notes.push_back("not known yet, ignored: " + flag);
}

}  // namespace

RunArguments parse_run_arguments(const std::vector<std::string>& arguments, const std::vector<OwnFlag>& own_flags,
                                 const std::string& base_yaml) {
  RunArguments out;
  config::Draft draft;
  if (!base_yaml.empty())
    draft.merge_yaml(without_sections(base_yaml, {"run", "parallel", "memory"}), "the checkpoint's config");
  std::vector<std::string> overrides, megatron, allowed;
  Words words(arguments);
  while (!words.done()) {
    const std::string word = words.next();
    const std::string name = name_of(word);
    const auto own =
        std::find_if(own_flags.begin(), own_flags.end(), [&](const OwnFlag& flag) { return flag.name == name; });
    if (own != own_flags.end()) {
      *own->value = words.value(word);
    } else if (name == "--help" || word == "-h") {
      out.help = true;
      if (!words.done() && !is_option(words.peek())) out.help_topic = words.next();
    } else if (name == "--trace") {
      continue;  // program.cpp's: errors with a stack trace
    } else if (name == "--nproc") {
      overrides.push_back("run.nproc=" + words.value(word));
    } else if (name == "--backend") {
      overrides.push_back("run.backend=" + words.value(word));
    } else if (name == "--config") {
      draft.merge_file(words.value(word));
    } else if (name == "--from-megatron-args") {
      add_megatron(draft, config::read_megatron_file(words.value(word)), out, false);
    } else if (name == "--checkpoint.allow") {
      allowed.push_back(words.value(word));
      while (!words.done() && is_key(words.peek())) allowed.push_back(words.next());
    } else if (is_option(word) && name.find('.') != std::string::npos) {
      overrides.push_back(name.substr(2) + "=" + words.value(word));
    } else if (is_option(word)) {
      megatron.push_back(word);
      while (!words.done() && !is_option(words.peek())) megatron.push_back(words.next());
    } else {
      draft.merge_file(word);
    }
  }
  if (!megatron.empty())
    add_megatron(draft, config::parse_megatron_args(megatron, config::MegatronForm::kSingleFlags), out, true);
  if (!allowed.empty()) overrides.push_back("checkpoint.allow=" + joined(allowed));
  draft.assign(overrides);
  out.config = draft.finish();
  return out;
}

config::Config checked_config(const config::Config& config, int64_t world_size) {
  config::check(config, world_size);
  return config::resolved(config, world_size);
}

}  // namespace metroplex::apps
