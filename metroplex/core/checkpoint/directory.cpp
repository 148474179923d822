#include "checkpoint/directory.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "base/error.h"
#include "files/checksum.h"
#include "files/json_text.h"

namespace metroplex::checkpoint {
namespace {

using files::join_path;

const std::string kPrefix = "iter_";

std::optional<int64_t> parse_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || text[0] == '-') return std::nullopt;
  return value;
}

std::string latest_text(const std::string& name) {
  return name + " " + files::to_hex(files::checksum(name.data(), name.size())) + "\n";
}

}  // namespace

std::string to_string(const CheckpointName& name) {
  std::string digits = std::to_string(name.iteration);
  if (digits.size() < 7) digits.insert(0, 7 - digits.size(), '0');
  return kPrefix + digits + (name.attempt == 1 ? "" : "." + std::to_string(name.attempt));
}

std::optional<CheckpointName> parse_name(const std::string& text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const size_t dot = text.find('.');
  const auto iteration =
      parse_number(text.substr(kPrefix.size(), dot == std::string::npos ? dot : dot - kPrefix.size()));
  const auto attempt = dot == std::string::npos ? std::optional<int64_t>(1) : parse_number(text.substr(dot + 1));
  if (!iteration || !attempt) return std::nullopt;
  const CheckpointName name{*iteration, *attempt};
  return to_string(name) == text ? std::optional(name) : std::nullopt;
}

std::vector<CheckpointName> list_checkpoints(files::FileSystem& disk, const std::string& root) {
  std::vector<CheckpointName> names;
  if (!disk.is_directory(root)) return names;
  for (const std::string& entry : disk.list(root)) {
    if (const auto name = parse_name(entry)) names.push_back(*name);
  }
  std::sort(names.begin(), names.end(), [](const CheckpointName& a, const CheckpointName& b) {
    return std::tie(a.iteration, a.attempt) < std::tie(b.iteration, b.attempt);
  });
  return names;
}

bool is_run_config(const std::string& name) { return name == kRunConfig || name == files::part_path(kRunConfig); }

std::vector<std::string> other_entries(files::FileSystem& disk, const std::string& root) {
  std::vector<std::string> names;
  if (!disk.is_directory(root)) return names;
  for (const std::string& entry : disk.list(root)) {
    if (entry[0] != '.' && entry != kLatest && !is_run_config(entry) && !parse_name(entry)) names.push_back(entry);
  }
  return names;
}

Latest read_latest(files::FileSystem& disk, const std::string& root) {
  const std::string path = join_path(root, kLatest);
  if (!disk.exists(path)) return {};
  // Opening a FIFO would block.
  if (!disk.file_size(path)) return {std::nullopt, base::concat("'", path, "' is not a regular file")};
  std::string text;
  try {
    text = disk.read(path);
  } catch (const base::Error& error) { return {std::nullopt, base::message_of(error)}; }
  const std::string word = text.substr(0, std::min(text.find(' '), text.size()));
  const auto name = parse_name(word);
  if (name && text == latest_text(word)) return {name, ""};
  return {std::nullopt, base::concat("'", path, "' is damaged: it contains '", files::printable(text), "'")};
}

void write_latest(files::FileSystem& disk, const std::string& root, const CheckpointName& name) {
  disk.replace_file(join_path(root, kLatest), latest_text(to_string(name)));
}

void sweep(files::FileSystem& disk, const std::string& root) {
  for (const std::string& entry : disk.list(root)) {
    if (entry.starts_with(kTemporaryPrefix) || entry.starts_with(kDeletePrefix))
      disk.remove_tree(join_path(root, entry));
  }
}

void remove_checkpoint(files::FileSystem& disk, const std::string& root, const CheckpointName& name) {
  const std::string hidden = join_path(root, kDeletePrefix + to_string(name));
  if (disk.exists(hidden)) disk.remove_tree(hidden);
  disk.rename(join_path(root, to_string(name)), hidden);
  disk.sync_directory(root);
  disk.remove_tree(hidden);
}

}  // namespace metroplex::checkpoint
