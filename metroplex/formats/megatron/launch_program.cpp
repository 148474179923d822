#include "megatron/launch_program.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "megatron/launch_ranks.h"

namespace metroplex::megatron {
namespace {

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_program(const std::string& word) {
  return word.size() > 3 && word.ends_with(".py") && !is_launcher_file(word);
}

}  // namespace

int program_rank(const std::string& path) {
  const std::string name = lower_case(std::filesystem::path(path).filename().string());
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  for (const char* tool : {"eval", "generat", "convert", "preprocess", "server", "tokeniz", "inference", "benchmark",
                           "prepare", "download", "merge", "export", "checkpoint", "ckpt", "check_", "text_gen"}) {
    if (has(tool)) return 0;
  }
  for (const char* training : {"train", "finetune", "fine_tune", "sft", "dpo", "rlhf", "grpo"}) {
    if (has(training)) return 2;
  }
  for (const std::filesystem::path& folder : std::filesystem::path(path).parent_path()) {
    if (folder == "tasks" || folder == "tools") return 0;
  }
  return 1;
}

std::optional<Program> find_program(const std::vector<std::string>& words) {
  auto file = std::find_if(words.begin(), words.end(), is_program);
  // Handles a .py program that starts a launcher: "launch.py torchrun pretrain_gpt.py".
  for (auto word = file; word != words.end() && word + 1 != words.end(); ++word) {
    if (!is_launcher_module(*word) || (word - 1)->rfind("--", 0) == 0) continue;
    const auto inner = std::find_if(word, words.end(), is_program);
    if (inner != words.end()) file = inner;
  }
  if (file != words.end()) return Program{*file, static_cast<size_t>(file - words.begin())};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if ((words[i] != "-m" && words[i] != "--module") || is_launcher_module(words[i + 1])) continue;
    std::string name = words[i + 1] + ".py";
    std::replace(name.begin(), name.end() - 3, '.', '/');
    if (program_rank(name) == 2) return Program{name, i + 1};
  }
  return std::nullopt;
}

}  // namespace metroplex::megatron
