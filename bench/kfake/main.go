// Runs kfake as a separate process: one broker that stores its logs in a directory. With -host, the brokers are in
// memory: see host.go.
package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	directory := flag.String("data-dir", "", "directory of the logs")
	port := flag.Int("port", 0, "port on 127.0.0.1; 0: any free port")
	synced := flag.Bool("sync", false, "sync each batch instead of leaving it in the page cache")
	certificate := flag.String("certificate", "", "serve TLS with this certificate file, which also holds the key")
	isHost := flag.Bool("host", false, "start and end brokers as standard input says")
	flag.Parse()
	run := host
	if !*isHost {
		run = func() error { return serve(*directory, *port, *synced, *certificate) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(directory string, port int, synced bool, certificate string) error {
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(directory)}
	if synced {
		options = append(options, kfake.SyncWrites())
	}
	if certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, certificate)
		if err != nil {
			return err
		}
		options = append(options, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		return err
	}
	defer cluster.Close()
	fmt.Println("ready", cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, os.Interrupt)
	<-ended
	return nil
}
