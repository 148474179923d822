// Parses the numbers of ranks in launchers' host lists and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct HostSlots {
  std::string name;
  int64_t slots = 0;  // 0: unspecified
};

// Returns a positive number, 0 for any other text.
int64_t to_count(const std::string& text);

// "h1:4,h2:4"; a host without a number has one slot.
std::vector<HostSlots> parse_host_list(const std::string& list);
// Lines "h1 slots=4", "h1:4" or "h1", and comments.
std::vector<HostSlots> parse_host_file(const std::string& text);
// Returns 0 if a host has no number of slots.
int64_t count_slots(const std::vector<HostSlots>& hosts);

// Applies DeepSpeed's --include or --exclude "h1:0,1@h2". Returns nullopt for unknown hosts and unsupported syntax.
std::optional<std::vector<HostSlots>> select_hosts(const std::vector<HostSlots>& hosts, const std::string& filter,
                                                   bool include);

// Returns the number after `key` in a YAML or JSON text; 0 if there is none.
int64_t number_in(const std::string& text, const std::string& key);

}  // namespace metroplex::megatron
