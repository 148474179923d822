// Model families: the presets of each name, the presets that define the family, and family properties that
// configuration checks need. models/registry.h builds the models.
#pragma once

#include <string>
#include <vector>

#include "config/model.h"

namespace metroplex::config {

// Constraint on a preset key next to the family name. free: any value; only: the preset value; above_zero: any value
// > 0.
enum class Means { free, only, above_zero };
struct Preset {
  const char *key, *value;
  Means means = Means::free;
};

struct Family {
  const char* name;
  bool top_query;  // the last layer computes its queries from a position embedding
  std::vector<Preset> presets;
};

std::vector<std::string> family_names();
// Returns null for an unknown name.
const Family* find_family(const std::string& name);
// Throws base::Error("config") with the nearest name if unknown.
const Family& family(const std::string& name);
// Throws base::Error("models") with all defining presets if the model differs from its family.
void check_family(const Model& model);

}  // namespace metroplex::config
