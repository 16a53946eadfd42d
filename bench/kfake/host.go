package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

// host is the process of a suite of tests in Go, which runs kfake within itself. Each line that it reads ends the
// cluster of the preceding test. The line `start` then starts a fresh cluster, and prints its address.
func host() error {
	var cluster *kfake.Cluster
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if cluster != nil {
			cluster.Close()
			cluster = nil
		}
		if lines.Text() == "start" {
			var err error
			if cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation()); err != nil {
				return err
			}
			fmt.Println("ready", cluster.ListenAddrs()[0])
		} else {
			fmt.Println("ready")
		}
	}
	return nil
}
