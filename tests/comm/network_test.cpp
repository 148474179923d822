#include "comm/network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "comm/sockets.h"
#include "support/error_of.h"

namespace metroplex::comm::network_test {
namespace {

TEST(Network, TheLoopbackIsAmongTheInterfacesAndHasItsAddress) {
  EXPECT_EQ(interface_addresses("lo", "a key"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(interface_addresses("lo,lo", "a key").size(), 2u);
}

TEST(Network, AnUnknownInterfaceIsNamedBesideThoseThatExist) {
  for (const std::string names : {"eth77", "lo,eth77"}) {
    try {
      interface_addresses(names, "run.network_interface");
      ADD_FAILURE() << names << " was taken";
    } catch (const base::Error& error) {
      const std::string said = error.what();
      EXPECT_EQ(error.room(), "config");
      EXPECT_NE(said.find("run.network_interface is '" + names + "'"), std::string::npos) << said;
      EXPECT_NE(said.find("'eth77'"), std::string::npos) << said;
      for (const Interface& interface : network_interfaces())
        EXPECT_NE(said.find(interface.name + " (" + interface.address + ")"), std::string::npos) << said;
    }
  }
}

TEST(Network, ANameThatLeadsNowhereIsAskedForAgainAndThenReported) {
  using namespace std::chrono_literals;
  EXPECT_EQ(resolve_error("127.0.0.1", 0s), "");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(resolve_error("no-such-host.invalid", 1200ms), "");
  // The wait ends when another pause of 500 ms would exceed the limit.
  EXPECT_GE(std::chrono::steady_clock::now() - start, 700ms) << "only one attempt";
}

TEST(Network, AProcessTakesAllTheOpenFilesThatItMayHave) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{40, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  raise_file_limit(8);  // each may open 56 of them
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  const int64_t too_many = static_cast<int64_t>(std::min<rlim_t>(before.rlim_max, int64_t{1} << 40));
  const std::string refusal = test::catch_error([&] { raise_file_limit(too_many); });
  EXPECT_NE(refusal.find("[config] RLIMIT_NOFILE"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("ulimit -Hn"), std::string::npos) << refusal;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// A host name that resolves to 127.0.1.1 (the default in Debian's /etc/hosts) is not reachable from other machines.
TEST(Network, ALoopbackMasterGivesTheLoopbackOnlyToRanksOfThisMachine) {
  EXPECT_EQ(route_address("127.0.1.1", /*others=*/false).rfind("127.", 0), 0u);
  const std::string address = route_address("127.0.1.1", /*others=*/true);
  bool another = false;
  for (const Interface& interface : network_interfaces()) another = another || !is_loopback(interface.address);
  EXPECT_EQ(is_loopback(address), !another) << address;
}

TEST(Network, AConnectionNobodyListensForIsRefused) {
  const auto [fd, port] = listen_at("127.0.0.1");
  std::string error;
  const int connected = connect_to("127.0.0.1", port, std::chrono::seconds(5), error);
  EXPECT_GE(connected, 0) << error;
  ::close(connected);
  ::close(fd);
  EXPECT_EQ(connect_to("127.0.0.1", port, std::chrono::seconds(5), error), -1);
  EXPECT_EQ(error, "Connection refused");
}

std::string bound_address(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return address.sin_family == AF_INET ? std::string(::inet_ntoa(address.sin_addr)) : "any";
}

TEST(Network, TheStoreListensAtTheMastersAddressIfItIsOfThisMachine) {
  const auto [taken, port] = listen_at("127.0.0.1");
  const std::string in_use =
      test::catch_error([port = port] { listen_at_name("127.0.0.1", port, /*others=*/false); });
  EXPECT_NE(in_use.find("second process that was started as rank 0"), std::string::npos) << in_use;
  ::close(taken);
  const OwnedFd own(listen_at_name("127.0.0.1", port, /*others=*/false));
  EXPECT_EQ(bound_address(own.get()), "127.0.0.1");
  const OwnedFd translated(listen_at_name("203.0.113.7", 0, /*others=*/true));  // of no machine
  EXPECT_EQ(bound_address(translated.get()), "any");
  const OwnedFd others(listen_at_name("127.0.1.1", 0, /*others=*/true));
  EXPECT_EQ(bound_address(others.get()), "any");
}

TEST(Network, ARefusedSocketKeepsItsConnections) {
  using std::chrono::milliseconds;
  const auto [listening, port] = listen_at("127.0.0.1");
  bool found = false;
  for (const auto& [inode, fd] : listening_sockets()) found = found || fd == listening;
  EXPECT_TRUE(found);
  std::string error;
  const OwnedFd first(connect_to("127.0.0.1", port, milliseconds(2000), error));
  ASSERT_GE(first.get(), 0) << error;
  const OwnedFd accepted(::accept(listening, nullptr, nullptr));
  refuse_connections(listening);
  EXPECT_EQ(connect_to("127.0.0.1", port, milliseconds(300), error), -1);
  EXPECT_EQ(connect_by_name("127.0.0.1", port, milliseconds(300), error), -1);
  EXPECT_EQ(error, "no answer");
  ASSERT_EQ(::send(first.get(), "x", 1, MSG_NOSIGNAL), 1);
  char byte = 0;
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, 0), 1);
  ::close(listening);
}

}  // namespace
}  // namespace metroplex::comm::network_test
