// The model families: what each one's name presets, what of it another setting would make another family, and what
// the ground floor has to know of it. How it is built is models/registry.h's.
#pragma once

#include <string>
#include <vector>

#include "config/model.h"

namespace metroplex::config {

// For a key that nobody gave. Beside the name of the family it may have any other value, that of the preset alone, or
// any above 0.
enum class Means { free, only, above_zero };
struct Preset {
  const char *key, *value;
  Means means = Means::free;
};

struct Family {
  const char* name;
  bool top_query;  // the last layer takes its queries from an embedding of the position
  std::vector<Preset> presets;
};

std::vector<std::string> family_names();
// Null where there is none of this name.
const Family* find_family(const std::string& name);
// Throws base::Error("config") with the nearest name instead.
const Family& family(const std::string& name);
// Throws base::Error("models") with all that the name of the family means, where the model is another.
void check_family(const Model& model);

}  // namespace metroplex::config
