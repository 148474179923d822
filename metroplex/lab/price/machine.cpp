#include "price/machine.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "price/machine_files.h"

namespace metroplex::price {
namespace {

class Reader {
 public:
  Reader(YAML::Node root, std::string origin) : root_(std::move(root)), origin_(std::move(origin)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& value, const std::string& rule) const {
    base::throw_error("cost",
                      base::concat(origin_, ": ", key, " = ", value.empty() ? "(nothing)" : value, ": ", rule));
  }
  // The number at `key` of `map`; `otherwise` if the key is absent.
  double number(const YAML::Node& map, const std::string& path, const std::string& key, double otherwise) const {
    const YAML::Node node = map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
    if (!node) return otherwise;
    double value = 0;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (!node.IsScalar() || !YAML::convert<double>::decode(node, value) || !std::isfinite(value) || value < 0)
      refuse(path + "." + key, text, "must be a finite number of at least 0");
    return value;
  }
  YAML::Node section(const YAML::Node& map, const std::string& key, YAML::NodeType::value type) const {
    const YAML::Node node = map.IsMap() ? map[key] : YAML::Node(YAML::NodeType::Undefined);
    if (!node || node.IsNull()) return YAML::Node(type);
    if (node.Type() != type)
      refuse(key, node.IsScalar() ? node.Scalar() : "(a collection)",
             type == YAML::NodeType::Map ? "must be a map" : "must be a list");
    return node;
  }
  void check_keys(const YAML::Node& map, const std::string& path, const std::vector<std::string>& known) const {
    for (const auto& entry : map) {
      const std::string key = entry.first.as<std::string>();
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(path + key, "(present)", "is not a known key; remove it");
    }
  }
  const YAML::Node& root() const { return root_; }

 private:
  YAML::Node root_;
  std::string origin_;
};

Curve read_curve(const Reader& reader, const YAML::Node& node, const std::string& key, const char* size,
                 const char* value) {
  Curve curve;
  if (!node.IsSequence() || node.size() == 0) reader.refuse(key, "", "must be a list of points");
  for (const YAML::Node& point : node) {
    const CurvePoint read{reader.number(point, key, size, 0), reader.number(point, key, value, 0)};
    if (read.size <= 0 || read.value <= 0)
      reader.refuse(key, base::concat(read.size, ", ", read.value),
                    base::concat("each point needs ", size, " and ", value, " above 0"));
    if (!curve.empty() && read.size <= curve.back().size)
      reader.refuse(key, base::concat(read.size), "sizes must ascend");
    curve.push_back(read);
  }
  return curve;
}

void read_device(const Reader& reader, Machine& machine) {
  const YAML::Node device = reader.section(reader.root(), "device", YAML::NodeType::Map);
  reader.check_keys(
      device, "device.",
      {"gpu", "peak_flops", "memory_bytes", "memory_bytes_per_s", "cache_bytes", "cache_bytes_per_s", "launch_s"});
  machine.gpu = device["gpu"] ? device["gpu"].as<bool>(true) : true;
  const YAML::Node peaks = reader.section(device, "peak_flops", YAML::NodeType::Map);
  for (const auto& entry : peaks) {
    const std::string dtype = entry.first.as<std::string>();
    machine.peak_flops[dtype] = reader.number(peaks, "device.peak_flops", dtype, 0);
  }
  machine.memory_bytes = reader.number(device, "device", "memory_bytes", 0);
  machine.memory_bytes_per_s = reader.number(device, "device", "memory_bytes_per_s", 0);
  machine.cache_bytes = reader.number(device, "device", "cache_bytes", 0);
  machine.cache_bytes_per_s = reader.number(device, "device", "cache_bytes_per_s", 0);
  machine.launch_s = reader.number(device, "device", "launch_s", 0);
}

void read_operators(const Reader& reader, Machine& machine) {
  const YAML::Node operators = reader.section(reader.root(), "operators", YAML::NodeType::Map);
  reader.check_keys(operators, "operators.", {"matmul", "grouped_matmul", "attention", "memory"});
  for (const auto& entry : operators) {
    const std::string kind = entry.first.as<std::string>();
    machine.shares[kind] =
        read_curve(reader, entry.second, "operators." + kind, kind == "memory" ? "bytes" : "flops", "share");
  }
  const YAML::Node measured = reader.section(reader.root(), "measured", YAML::NodeType::Map);
  for (const auto& entry : measured) {
    const std::string name = entry.first.as<std::string>();
    machine.measured[name] = read_curve(reader, entry.second, "measured." + name, "work", "per_s");
  }
  const YAML::Node issue = reader.section(reader.root(), "issue", YAML::NodeType::Map);
  reader.check_keys(issue, "issue.", {"library_call_s", "own_call_s", "region_s", "step_s"});
  machine.library_call_s = reader.number(issue, "issue", "library_call_s", 0);
  machine.own_call_s = reader.number(issue, "issue", "own_call_s", 0);
  machine.region_s = reader.number(issue, "issue", "region_s", 0);
  machine.step_s = reader.number(issue, "issue", "step_s", 0);
}

void read_links(const Reader& reader, Machine& machine) {
  const YAML::Node links = reader.section(reader.root(), "links", YAML::NodeType::Sequence);
  if (links.size() > 0) machine.cluster.domains.clear();
  for (size_t i = 0; i < links.size(); ++i) {
    const YAML::Node& link = links[i];
    const std::string key = base::concat("links[", i, "]");
    if (!link.IsMap()) reader.refuse(key, "", "must be a map");
    reader.check_keys(link, key + ".", {"name", "ranks", "latency_s", "bytes_per_s", "share"});
    Domain domain;
    domain.name = link["name"] ? link["name"].as<std::string>("") : "";
    domain.ranks = static_cast<int64_t>(reader.number(link, key, "ranks", 0));
    domain.link.latency_s = reader.number(link, key, "latency_s", 0);
    domain.link.bytes_per_s = reader.number(link, key, "bytes_per_s", 0) * reader.number(link, key, "share", 1);
    if (domain.link.bytes_per_s <= 0) reader.refuse(key + ".bytes_per_s", "0", "must be above 0");
    const bool last = i + 1 == links.size();
    if (last != (domain.ranks == 0))
      reader.refuse(key + ".ranks", base::concat(domain.ranks),
                    "must be 0 (all ranks) for the last link, and above 0 for the others");
    machine.cluster.domains.push_back(domain);
  }
}

}  // namespace

Machine read_machine(std::string_view yaml, const std::string& origin) {
  YAML::Node root;
  try {
    root = YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& error) {
    base::throw_error("cost", base::concat(origin, ": line ", error.mark.line + 1, ": ", error.msg));
  }
  const Reader reader(root, origin);
  if (!root.IsMap()) reader.refuse("file", "", "must be a map with device, operators, and links");
  reader.check_keys(root, "",
                    {"name", "device", "operators", "measured", "issue", "links", "host", "error", "sources"});
  Machine machine;
  machine.name = root["name"] && root["name"].IsScalar() ? root["name"].Scalar() : origin;
  read_device(reader, machine);
  read_operators(reader, machine);
  read_links(reader, machine);
  const YAML::Node host = reader.section(root, "host", YAML::NodeType::Map);
  machine.host_bytes_per_s = reader.number(host, "host", "bytes_per_s", 0);
  machine.file_bytes_per_s = reader.number(host, "host", "file_bytes_per_s", 0);
  machine.error = reader.number(root, "file", "error", machine.error);
  const YAML::Node sources = reader.section(root, "sources", YAML::NodeType::Map);
  for (const auto& entry : sources) machine.sources[entry.first.as<std::string>()] = entry.second.as<std::string>("");
  return machine;
}

namespace {

void write_curves(YAML::Emitter& out, const char* section, const std::map<std::string, Curve>& curves,
                  bool measured) {
  if (curves.empty()) return;
  out << YAML::Key << section << YAML::Value << YAML::BeginMap;
  for (const auto& [name, curve] : curves) {
    const char* size = measured ? "work" : name == "memory" ? "bytes" : "flops";
    out << YAML::Key << name << YAML::Value << YAML::BeginSeq;
    for (const CurvePoint& point : curve)
      out << YAML::Flow << YAML::BeginMap << YAML::Key << size << YAML::Value << point.size << YAML::Key
          << (measured ? "per_s" : "share") << YAML::Value << point.value << YAML::EndMap;
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
}

void write_numbers(YAML::Emitter& out, const char* section,
                   const std::vector<std::pair<const char*, double>>& figures) {
  out << YAML::Key << section << YAML::Value << YAML::BeginMap;
  for (const auto& [key, value] : figures) out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
}

}  // namespace

std::string write_machine(const Machine& machine) {
  YAML::Emitter out;
  out.SetDoublePrecision(6);
  out << YAML::BeginMap << YAML::Key << "name" << YAML::Value << machine.name;
  out << YAML::Key << "device" << YAML::Value << YAML::BeginMap;
  out << YAML::Key << "gpu" << YAML::Value << machine.gpu;
  out << YAML::Key << "peak_flops" << YAML::Value << YAML::Flow << YAML::BeginMap;
  for (const auto& [dtype, flops] : machine.peak_flops) out << YAML::Key << dtype << YAML::Value << flops;
  out << YAML::EndMap;
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, double>>{{"memory_bytes", machine.memory_bytes},
                                                   {"memory_bytes_per_s", machine.memory_bytes_per_s},
                                                   {"cache_bytes", machine.cache_bytes},
                                                   {"cache_bytes_per_s", machine.cache_bytes_per_s},
                                                   {"launch_s", machine.launch_s}})
    out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap;
  write_curves(out, "operators", machine.shares, false);
  write_curves(out, "measured", machine.measured, true);
  write_numbers(out, "issue",
                {{"library_call_s", machine.library_call_s},
                 {"own_call_s", machine.own_call_s},
                 {"region_s", machine.region_s},
                 {"step_s", machine.step_s}});
  out << YAML::Key << "links" << YAML::Value << YAML::BeginSeq;
  for (const Domain& domain : machine.cluster.domains)
    out << YAML::Flow << YAML::BeginMap << YAML::Key << "name" << YAML::Value << domain.name << YAML::Key << "ranks"
        << YAML::Value << domain.ranks << YAML::Key << "latency_s" << YAML::Value << domain.link.latency_s
        << YAML::Key << "bytes_per_s" << YAML::Value << domain.link.bytes_per_s << YAML::EndMap;
  out << YAML::EndSeq;
  write_numbers(out, "host",
                {{"bytes_per_s", machine.host_bytes_per_s}, {"file_bytes_per_s", machine.file_bytes_per_s}});
  out << YAML::Key << "error" << YAML::Value << machine.error;
  out << YAML::Key << "sources" << YAML::Value << YAML::BeginMap;
  for (const auto& [key, source] : machine.sources) out << YAML::Key << key << YAML::Value << source;
  out << YAML::EndMap << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

namespace {

struct KnownMachine {
  const char* name;
  const char* const& yaml;
};
constexpr KnownMachine kKnownMachines[] = {
    {"a100", kA100Yaml}, {"b200", kB200Yaml}, {"cpu", kCpuYaml},      {"gb200_nvl72", kGb200Nvl72Yaml},
    {"h100", kH100Yaml}, {"h200", kH200Yaml}, {"mi300x", kMi300xYaml}};

}  // namespace

std::vector<std::string> known_machines() {
  std::vector<std::string> names;
  for (const KnownMachine& known : kKnownMachines) names.emplace_back(known.name);
  return names;
}

Machine find_machine(const std::string& name_or_path) {
  for (const KnownMachine& known : kKnownMachines) {
    if (known.name == name_or_path) return read_machine(known.yaml, name_or_path);
  }
  std::ifstream in(name_or_path);
  std::ostringstream text;
  text << in.rdbuf();
  std::string known;
  for (const std::string& name : known_machines()) known += (known.empty() ? "" : ", ") + name;
  MPX_CHECK(in, "cost", "no machine '", name_or_path, "': give one of ", known,
            ", or a file that metroplex calibrate wrote");
  return read_machine(text.str(), name_or_path);
}

}  // namespace metroplex::price
