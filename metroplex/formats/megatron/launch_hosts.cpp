#include "megatron/launch_hosts.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

namespace metroplex::megatron {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

HostSlots split_host(const std::string& word) {
  const size_t colon = word.find(':');
  return {word.substr(0, colon), colon == std::string::npos ? 0 : to_count(word.substr(colon + 1))};
}

bool are_ids(const std::vector<std::string>& words) {
  return !words.empty() && std::all_of(words.begin(), words.end(),
                                       [](const std::string& word) { return word == "0" || to_count(word) > 0; });
}

}  // namespace

int64_t to_count(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 && number <= 1'000'000 ? number : 0;
}

std::vector<HostSlots> parse_host_list(const std::string& list) {
  std::vector<HostSlots> hosts;
  for (const std::string& word : split(list, ',')) {
    hosts.push_back(split_host(word));
    if (word.find(':') == std::string::npos) hosts.back().slots = 1;
  }
  return hosts;
}

std::vector<HostSlots> parse_host_file(const std::string& text) {
  std::vector<HostSlots> hosts;
  for (const std::string& line : split(text, '\n')) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) continue;
    hosts.push_back(split_host(word));
    while (words >> word) {
      if (word.rfind("slots=", 0) == 0) hosts.back().slots = to_count(word.substr(6));
    }
  }
  return hosts;
}

int64_t count_slots(const std::vector<HostSlots>& hosts) {
  int64_t sum = 0;
  for (const HostSlots& host : hosts) {
    if (host.slots == 0) return 0;
    sum += host.slots;
  }
  return sum;
}

std::optional<std::vector<HostSlots>> select_hosts(const std::vector<HostSlots>& hosts, const std::string& filter,
                                                   bool include) {
  std::vector<HostSlots> selected = include ? std::vector<HostSlots>{} : hosts;
  for (const std::string& node : split(filter, '@')) {
    const size_t colon = node.find(':');
    const std::string name = node.substr(0, colon);
    const std::vector<std::string> ids =
        colon == std::string::npos ? std::vector<std::string>{} : split(node.substr(colon + 1), ',');
    const auto known =
        std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& host) { return host.name == name; });
    const bool all = colon == std::string::npos;
    if ((!all && !are_ids(ids)) || (known == hosts.end() && (all || !include))) return std::nullopt;
    const auto number = static_cast<int64_t>(ids.size());
    if (include) {
      selected.push_back({name, all ? known->slots : number});
      continue;
    }
    const auto host =
        std::find_if(selected.begin(), selected.end(), [&](const HostSlots& other) { return other.name == name; });
    if (host == selected.end()) return std::nullopt;
    if (!all) host->slots -= number;
    if (all || host->slots <= 0) selected.erase(host);
  }
  return selected;
}

int64_t number_in(const std::string& text, const std::string& key) {
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    const size_t value = text.find_first_not_of("\"': \t", at + key.size());
    if (value == std::string::npos || value == at + key.size()) continue;
    return to_count(text.substr(value, text.find_first_of(", \t\r\n}\"'#", value) - value));
  }
  return 0;
}

}  // namespace metroplex::megatron
