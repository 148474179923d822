#include "device/architectures.h"

#include <algorithm>
#include <charconv>

namespace metroplex::device {
namespace {

constexpr int kOldest = 80;  // first architecture with bf16 tensor cores

bool runs_on(std::string_view one, int capability) {
  int number = 0;
  const auto [rest, error] = std::from_chars(one.data(), one.data() + one.size(), number);
  if (error != std::errc() || number < 10) return false;
  one.remove_prefix(static_cast<size_t>(rest - one.data()));
  const bool exact = one.starts_with('a');
  if (exact || one.starts_with('f')) one.remove_prefix(1);
  const bool real = one.empty() || one == "-real", ptx = one.empty() || one == "-virtual";
  if (exact) return number == capability && (real || ptx);
  return (real && number / 10 == capability / 10 && number <= capability) || (ptx && number <= capability);
}

}  // namespace

bool architectures_run_on(std::string_view built, int capability) {
  constexpr std::string_view kBetween = " ,;";
  while (!built.empty()) {
    const size_t end = std::min(built.find_first_of(kBetween), built.size());
    if (runs_on(built.substr(0, end), capability)) return true;
    built.remove_prefix(std::min(end + 1, built.size()));
  }
  return false;
}

std::string real_architectures(std::initializer_list<int> of_nvcc) {
  std::string all;
  for (const int architecture : of_nvcc)
    all += (all.empty() ? "" : ",") + std::to_string(architecture / 10) + "-real";
  return all;
}

std::string architecture_for(int capability) {
  if (capability < kOldest) return "";
  return std::to_string(capability) + (capability >= 90 ? "a-real" : "-real");
}

}  // namespace metroplex::device
